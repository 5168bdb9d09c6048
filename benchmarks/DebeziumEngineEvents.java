import com.sun.management.OperatingSystemMXBean;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.BufferedOutputStream;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.util.Properties;

/**
 * Runs a connector of Debezium in its engine, without Kafka: each event becomes the texts of key and value.
 *
 * Usage: DebeziumEngineEvents PROPERTIES TOPIC EVENTS EVERY OUTPUT
 *
 * It prints "ready" at the first event of whatever topic. After EVENTS events of TOPIC it prints "cpu_ns COUNT CPU" for each
 * multiple of EVERY that it came to, CPU being that of the whole process since its start, collector included, and ends. OUTPUT
 * is a file for key and value of each event, or "-" for none.
 */
public final class DebeziumEngineEvents
{
    private static final OperatingSystemMXBean SYSTEM = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    private final String topic;
    private final int events;
    private final int every;
    private final PrintStream output;
    private final StringBuilder times = new StringBuilder();
    private boolean ready;
    private int count;

    private DebeziumEngineEvents(String topic, int events, int every, PrintStream output)
    {
        this.topic = topic;
        this.events = events;
        this.every = every;
        this.output = output;
    }

    public static void main(String[] arguments) throws Exception
    {
        Properties settings = new Properties();
        try (FileInputStream in = new FileInputStream(arguments[0]))
        {
            settings.load(in);
        }
        PrintStream output = arguments[4].equals("-")
            ? null
            : new PrintStream(new BufferedOutputStream(new FileOutputStream(arguments[4]), 1 << 20), false, "UTF-8");
        DebeziumEngineEvents counter = new DebeziumEngineEvents(
            arguments[1], Integer.parseInt(arguments[2]), Integer.parseInt(arguments[3]), output);
        DebeziumEngine<ChangeEvent<String, String>> engine = DebeziumEngine.create(Json.class)
            .using(settings)
            .using((success, message, error) -> {
                System.err.println(message);
                if (error != null)
                    error.printStackTrace();
                Runtime.getRuntime().halt(1);
            })
            .notifying(counter::take)
            .build();
        engine.run();
    }

    private synchronized void take(ChangeEvent<String, String> event)
    {
        if (!ready)
        {
            System.out.println("ready");
            ready = true;
        }
        if (!topic.equals(event.destination()))
            return;
        count++;
        if (output != null)
            output.println(event.key() + "\t" + event.value());
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
}
