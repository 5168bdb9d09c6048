import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.client.impl.schema.KeyValueSchemaInfo;
import org.apache.pulsar.common.schema.KeyValue;

/** Prints all messages of a topic as a client reads them that knows nothing of their schema beforehand. */
public class PulsarReader {
    public static void main(String[] arguments) throws Exception {
        ObjectMapper json = new ObjectMapper();
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build();
                Reader<GenericRecord> reader = client.newReader(Schema.AUTO_CONSUME())
                        .topic(arguments[1]).startMessageId(MessageId.earliest).create()) {
            while (reader.hasMessageAvailable()) {
                Message<GenericRecord> message = reader.readNext();
                Map<String, Object> told = new LinkedHashMap<>();
                Object pair = message.getValue() == null ? null : message.getValue().getNativeObject();
                if (pair instanceof KeyValue) {
                    told.put("key", fields(((KeyValue<?, ?>) pair).getKey()));
                    told.put("value", fields(((KeyValue<?, ?>) pair).getValue()));
                }
                told.put("encoding", KeyValueSchemaInfo
                        .decodeKeyValueEncodingType(message.getReaderSchema().get().getSchemaInfo()).toString());
                told.put("properties", message.getProperties());
                told.put("sequence", message.getSequenceId());
                told.put("producer", message.getProducerName());
                told.put("text_key", message.getKey());
                told.put("encoded", message.hasBase64EncodedKey());
                System.out.println(json.writeValueAsString(told));
            }
        }
    }

    private static Object fields(Object value) {
        if (!(value instanceof GenericRecord)) {
            return null;
        }
        GenericRecord row = (GenericRecord) value;
        Map<String, Object> told = new LinkedHashMap<>();
        row.getFields().forEach(f -> {
            Object found = row.getField(f);
            told.put(f.getName(), found == null ? null : String.valueOf(found));
        });
        return told;
    }
}
