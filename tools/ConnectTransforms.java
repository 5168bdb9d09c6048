import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.header.ConnectHeaders;
import org.apache.kafka.connect.header.Header;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.transforms.Transformation;
import org.apache.kafka.connect.transforms.predicates.Predicate;

/** Puts records through Kafka Connect's own transforms, as a worker does: what our chain is compared with. */
public class ConnectTransforms {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final JsonConverter CONVERTER = new JsonConverter();

    private record Step(
            Transformation<SourceRecord> transform, Predicate<SourceRecord> predicate, boolean negate) {}

    /** Reads cases from the first file, a JSON list, and writes what becomes of their records to the second. */
    public static void main(String[] args) throws Exception {
        CONVERTER.configure(Map.of("schemas.enable", "true"), false);
        ArrayNode results = JSON.createArrayNode();
        for (JsonNode one : JSON.readTree(Files.readString(Path.of(args[0])))) {
            results.add(run(one));
        }
        Files.writeString(Path.of(args[1]), JSON.writeValueAsString(results));
    }

    private static ArrayNode run(JsonNode one) throws Exception {
        List<Step> steps = steps(one.get("properties"));
        ArrayNode results = JSON.createArrayNode();
        for (JsonNode given : one.get("records")) {
            SourceRecord record = record(given);
            try {
                for (Step step : steps) {
                    boolean chosen = step.predicate == null || step.predicate.test(record) != step.negate;
                    record = chosen ? step.transform.apply(record) : record;
                    if (record == null) {
                        break;
                    }
                }
                results.add(record == null ? JSON.nullNode() : shown(record));
            } catch (RuntimeException error) {
                results.add(JSON.createObjectNode().put("error", error.toString()));
            }
        }
        return results;
    }

    private static List<Step> steps(JsonNode properties) throws Exception {
        List<Step> steps = new ArrayList<>();
        for (String alias : properties.get("transforms").asText().split(",")) {
            Map<String, String> settings = settings(properties, "transforms." + alias.trim() + ".");
            String predicate = settings.remove("predicate");
            boolean negate = Boolean.parseBoolean(settings.remove("negate"));
            Transformation<SourceRecord> transform = made(settings.remove("type"));
            transform.configure(settings);
            Predicate<SourceRecord> asked = null;
            if (predicate != null) {
                Map<String, String> own = settings(properties, "predicates." + predicate + ".");
                asked = made(own.remove("type"));
                asked.configure(own);
            }
            steps.add(new Step(transform, asked, negate));
        }
        return steps;
    }

    @SuppressWarnings("unchecked")
    private static <T> T made(String name) throws Exception {
        return (T) Class.forName(name).getDeclaredConstructor().newInstance();
    }

    private static Map<String, String> settings(JsonNode properties, String lead) {
        Map<String, String> found = new HashMap<>();
        properties.fields().forEachRemaining(entry -> {
            if (entry.getKey().startsWith(lead)) {
                found.put(entry.getKey().substring(lead.length()), entry.getValue().asText());
            }
        });
        return found;
    }

    private static SourceRecord record(JsonNode given) {
        SchemaAndValue key = data(given.get("key"));
        SchemaAndValue value = data(given.get("value"));
        ConnectHeaders headers = new ConnectHeaders();
        for (JsonNode header : given.get("headers")) {
            SchemaAndValue content = data(header.get(1));
            headers.add(header.get(0).asText(), content);
        }
        Long timestamp = given.get("timestamp").isNull() ? null : given.get("timestamp").asLong();
        return new SourceRecord(
                Map.of(), Map.of(), given.get("topic").asText(), null, key.schema(), key.value(), value.schema(),
                value.value(), timestamp, headers);
    }

    private static SchemaAndValue data(JsonNode given) {
        if (given.isNull()) {
            return SchemaAndValue.NULL;
        }
        return CONVERTER.toConnectData("t", given.toString().getBytes(StandardCharsets.UTF_8));
    }

    private static ObjectNode shown(SourceRecord record) {
        ObjectNode shown = JSON.createObjectNode();
        shown.put("topic", record.topic());
        shown.put("partition", record.kafkaPartition());
        shown.put("key", text(record.keySchema(), record.key()));
        shown.put("value", record.value() == null ? null : text(record.valueSchema(), record.value()));
        ArrayNode headers = shown.putArray("headers");
        for (Header header : record.headers()) {
            headers.addArray().add(header.key()).add(text(header.schema(), header.value()));
        }
        return shown;
    }

    private static String text(org.apache.kafka.connect.data.Schema schema, Object value) {
        byte[] bytes = CONVERTER.fromConnectData("t", schema, value);
        return bytes == null ? null : new String(bytes, StandardCharsets.UTF_8);
    }
}
