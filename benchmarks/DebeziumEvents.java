package io.debezium.connector.cassandra;

import com.sun.management.OperatingSystemMXBean;
import io.debezium.config.CommonConnectorConfig;
import io.debezium.config.Configuration;
import io.debezium.spi.topic.TopicNamingStrategy;
import java.io.BufferedOutputStream;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.kafka.connect.json.JsonConverter;

/**
 * Runs Debezium's connector without Kafka: each event becomes the bytes of key and value that JsonConverter makes of it.
 *
 * Usage: DebeziumEvents PROPERTIES EVENTS EVERY OUTPUT
 *
 * After EVENTS events it prints "cpu_ns COUNT CPU" for each multiple of EVERY that it came to, CPU being that of the whole
 * process since its start, collector included, and ends. OUTPUT is a file for key and value of each event, or "-" for none.
 */
public final class DebeziumEvents
{
    private static final OperatingSystemMXBean SYSTEM = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    /** Takes the place of a Kafka producer. */
    private static final class Converting implements Emitter
    {
        private final TopicNamingStrategy<KeyspaceTable> topics;
        private final JsonConverter keys = new JsonConverter();
        private final JsonConverter values = new JsonConverter();
        private final int events;
        private final int every;
        private final PrintStream output;
        private final StringBuilder times = new StringBuilder();
        private int count;

        Converting(TopicNamingStrategy<KeyspaceTable> topics, int events, int every, PrintStream output)
        {
            this.topics = topics;
            this.events = events;
            this.every = every;
            this.output = output;
            keys.configure(Map.of("schemas.enable", "false"), true);
            values.configure(Map.of("schemas.enable", "false"), false);
        }

        @Override
        public synchronized void emit(Record event)
        {
            String topic = topics.dataChangeTopic(event.getSource().keyspaceTable);
            byte[] key = keys.fromConnectData(topic, event.getKeySchema(), event.buildKey());
            byte[] value = values.fromConnectData(topic, event.getValueSchema(), event.buildValue());
            count++;
            if (output != null)
                output.println(new String(key, StandardCharsets.UTF_8) + "\t" + new String(value, StandardCharsets.UTF_8));
            if (count % every == 0)
                times.append("cpu_ns ").append(count).append(' ').append(SYSTEM.getProcessCpuTime()).append('\n');
            if (count == events)
            {
                if (output != null)
                    output.close();
                System.out.print(times);
                System.out.flush();
                Runtime.getRuntime().halt(0);
            }
        }

        @Override
        public void close()
        {
        }
    }

    public static void main(String[] arguments) throws Exception
    {
        Configuration settings;
        try (FileInputStream in = new FileInputStream(arguments[0]))
        {
            settings = Configuration.load(in);
        }
        PrintStream output = arguments[3].equals("-")
            ? null
            : new PrintStream(new BufferedOutputStream(new FileOutputStream(arguments[3]), 1 << 20), false, "UTF-8");
        ComponentFactory factory = new ComponentFactory()
        {
            @Override
            public OffsetWriter offsetWriter(CassandraConnectorConfig config)
            {
                try
                {
                    return new FileOffsetWriter(config);
                }
                catch (IOException error)
                {
                    throw new UncheckedIOException(error);
                }
            }

            @Override
            public Emitter recordEmitter(CassandraConnectorContext context)
            {
                TopicNamingStrategy<KeyspaceTable> topics =
                    context.getCassandraConnectorConfig().getTopicNamingStrategy(CommonConnectorConfig.TOPIC_NAMING_STRATEGY);
                return new Converting(topics, Integer.parseInt(arguments[1]), Integer.parseInt(arguments[2]), output);
            }
        };
        CassandraConnectorTask.init(new CassandraConnectorConfig(settings), factory).start();
        Thread.sleep(Long.MAX_VALUE);
    }
}
