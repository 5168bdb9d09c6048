import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.debezium.embedded.Connect;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import java.io.BufferedWriter;
import java.io.File;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.header.Header;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.storage.Converter;

/**
 * Runs connectors of Debezium side by side, each in an engine of its own, and writes what a Kafka Connect worker would send.
 *
 * Usage: DebeziumRecorder RUNS MARKER FOLDER
 *
 * RUNS is a file with a JSON object: per name the "properties" of a connector, those of Kafka's JsonConverter as "json", and as
 * "converter" those of another one, with its class as "type", if one is to be asked besides. FOLDER/NAME gets a line of JSON per record: topic, key and value
 * as JsonConverter writes them with schemas and without, headers, and key and value in base64 as the other converter does.
 * MARKER is the end of a topic's name. "started NAME" is printed at a run's first record of such a topic, "done NAME" at the
 * second one, which ends it.
 */
public final class DebeziumRecorder
{
    private static final ObjectMapper JSON = new ObjectMapper();

    private final String name;
    private final String marker;
    private final BufferedWriter output;
    private final JsonConverter framed = new JsonConverter();
    private final JsonConverter plain = new JsonConverter();
    private Converter keys;
    private Converter values;
    private int markers;

    private DebeziumRecorder(String name, JsonNode run, String marker, String folder) throws Exception
    {
        this.name = name;
        this.marker = marker;
        output = Files.newBufferedWriter(Path.of(folder, name));
        Map<String, String> json = settings(run.get("json"));
        json.put("schemas.enable", "true");
        framed.configure(json, false);
        json.put("schemas.enable", "false");
        plain.configure(json, false);
        if (run.has("converter"))
        {
            Map<String, String> settings = settings(run.get("converter"));
            String type = settings.remove("type");
            keys = (Converter) Class.forName(type).getDeclaredConstructor().newInstance();
            keys.configure(settings, true);
            values = (Converter) Class.forName(type).getDeclaredConstructor().newInstance();
            values.configure(settings, false);
        }
    }

    public static void main(String[] arguments) throws Exception
    {
        JsonNode runs = JSON.readTree(new File(arguments[0]));
        List<Thread> threads = new ArrayList<>();
        for (Map.Entry<String, JsonNode> run : runs.properties())
        {
            DebeziumRecorder recorder = new DebeziumRecorder(run.getKey(), run.getValue(), arguments[1], arguments[2]);
            Properties properties = new Properties();
            properties.putAll(settings(run.getValue().get("properties")));
            Thread thread = new Thread(() -> recorder.record(properties));
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads)
            thread.join();
        Runtime.getRuntime().halt(0);
    }

    private static Map<String, String> settings(JsonNode given)
    {
        Map<String, String> found = new HashMap<>();
        given.properties().forEach(entry -> found.put(entry.getKey(), entry.getValue().asText()));
        return found;
    }

    private void record(Properties properties)
    {
        DebeziumEngine<ChangeEvent<SourceRecord, SourceRecord>> engine = DebeziumEngine.create(Connect.class)
            .using(properties)
            .using((success, message, error) -> {
                System.err.println(name + ": " + message);
                if (error != null)
                    error.printStackTrace();
                if (markers < 2)
                    Runtime.getRuntime().halt(1);
            })
            .notifying(this::take)
            .build();
        new Thread(() -> {
            try
            {
                synchronized (this)
                {
                    while (markers < 2)
                        wait();
                }
                engine.close();
            }
            catch (Exception error)
            {
                error.printStackTrace();
                Runtime.getRuntime().halt(1);
            }
        }).start();
        engine.run();
    }

    private synchronized void take(ChangeEvent<SourceRecord, SourceRecord> event)
    {
        try
        {
            SourceRecord record = event.value();
            if (markers >= 2)
                return;
            output.write(JSON.writeValueAsString(shown(record)));
            output.newLine();
            if (record.topic().endsWith(marker) && ++markers == 2)
            {
                output.close();
                notifyAll();
            }
            if (record.topic().endsWith(marker))
                System.out.println((markers == 1 ? "started " : "done ") + name);
        }
        catch (Exception error)
        {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }

    private ObjectNode shown(SourceRecord record)
    {
        String topic = record.topic();
        ObjectNode shown = JSON.createObjectNode().put("topic", topic);
        shown.put("key", text(framed, topic, record.keySchema(), record.key()));
        shown.put("value", text(framed, topic, record.valueSchema(), record.value()));
        shown.put("plain_key", text(plain, topic, record.keySchema(), record.key()));
        shown.put("plain_value", text(plain, topic, record.valueSchema(), record.value()));
        ObjectNode headers = shown.putObject("headers");
        for (Header header : record.headers())
            headers.put(header.key(), text(framed, topic, header.schema(), header.value()));
        if (keys != null)
        {
            shown.put("other_key", other(keys, topic, record.keySchema(), record.key()));
            shown.put("other_value", other(values, topic, record.valueSchema(), record.value()));
        }
        return shown;
    }

    /** Returns what a worker would send, null for nothing. */
    private static String text(Converter converter, String topic, Schema schema, Object value)
    {
        byte[] bytes = converter.fromConnectData(topic, schema, value);
        return bytes == null ? null : new String(bytes, StandardCharsets.UTF_8);
    }

    private static String other(Converter converter, String topic, Schema schema, Object value)
    {
        byte[] bytes = converter.fromConnectData(topic, new RecordHeaders(), schema, value);
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }
}
