import com.sun.management.OperatingSystemMXBean;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.util.zip.CRC32;
import org.apache.cassandra.config.DatabaseDescriptor;
import org.apache.cassandra.db.Mutation;
import org.apache.cassandra.db.commitlog.CommitLog;
import org.apache.cassandra.db.commitlog.CommitLogDescriptor;
import org.apache.cassandra.db.commitlog.CommitLogReadHandler;
import org.apache.cassandra.db.commitlog.CommitLogReader;
import org.apache.cassandra.db.partitions.PartitionUpdate;
import org.apache.cassandra.db.rows.Cell;
import org.apache.cassandra.db.rows.Row;
import org.apache.cassandra.io.util.File;
import org.apache.cassandra.schema.Schema;

/**
 * Reads segments with Cassandra's own reader: once to count and hash, then again and again to time it.
 *
 * Usage: CommitLogRead KEYSPACE ROUNDS SEGMENT...
 *
 * Prints "found ENTRIES ROWS CELLS HASH", then "cpu_ns N" per round: CPU time of the whole process, collector included.
 */
public final class CommitLogRead
{
    /** Does nothing with a mutation unless told to look: the reader has made all its rows and cells by then. */
    private static final class Handler implements CommitLogReadHandler
    {
        private final String keyspace;
        private final boolean look;
        private long entries;
        private long rows;
        private long cells;
        private long hash;

        Handler(String keyspace, boolean look)
        {
            this.keyspace = keyspace;
            this.look = look;
        }

        @Override
        public boolean shouldSkipSegmentOnError(CommitLogReadException error) throws IOException
        {
            throw error;
        }

        @Override
        public void handleUnrecoverableError(CommitLogReadException error) throws IOException
        {
            throw error;
        }

        @Override
        public void handleMutation(Mutation mutation, int size, int end, CommitLogDescriptor descriptor)
        {
            entries++;
            if (!look || !mutation.getKeyspaceName().equals(keyspace))
                return;
            for (PartitionUpdate update : mutation.getPartitionUpdates())
                for (Row row : update)
                {
                    rows++;
                    for (Cell<?> cell : row.cells())
                    {
                        cells++;
                        hash += crc(cell.buffer()) * (cell.timestamp() | 1);
                    }
                }
        }
    }

    private static long crc(ByteBuffer value)
    {
        CRC32 crc = new CRC32();
        crc.update(value.duplicate());
        return crc.getValue();
    }

    private static Handler read(String[] arguments, boolean look) throws IOException
    {
        Handler handler = new Handler(arguments[0], look);
        CommitLogReader reader = new CommitLogReader();
        for (int i = 2; i < arguments.length; i++)
            reader.readCommitLogSegment(handler, new File(arguments[i]), CommitLogReader.ALL_MUTATIONS, false);
        return handler;
    }

    public static void main(String[] arguments) throws Exception
    {
        try
        {
            DatabaseDescriptor.daemonInitialization();
            CommitLog.instance.start();
            Schema.instance.loadFromDisk();
            Handler found = read(arguments, true);
            System.out.println("found " + found.entries + " " + found.rows + " " + found.cells + " " + found.hash);
            OperatingSystemMXBean system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
            for (int round = 0; round < Integer.parseInt(arguments[1]); round++)
            {
                long before = system.getProcessCpuTime();
                read(arguments, false);
                System.out.println("cpu_ns " + (system.getProcessCpuTime() - before));
            }
            System.out.flush();
            Runtime.getRuntime().halt(0);
        }
        catch (Throwable error)
        {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }
}
