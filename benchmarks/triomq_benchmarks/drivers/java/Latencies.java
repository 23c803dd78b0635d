import com.alibaba.fastjson.JSONObject;
import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.Arrays;
import java.util.concurrent.atomic.AtomicInteger;

/** Counts answers and keeps how long each took; any thread may record. */
final class Latencies {
    private static final OperatingSystemMXBean SYSTEM =
        (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    private final long[] nanos;
    private final long cpuBefore = SYSTEM.getProcessCpuTime();
    private final AtomicInteger recorded = new AtomicInteger();
    private final AtomicInteger failures = new AtomicInteger();
    private volatile String firstFailure;

    Latencies(int capacity) {
        nanos = new long[capacity];
    }

    void record(long startedNanos) {
        int at = recorded.getAndIncrement();
        if (at < nanos.length) {
            nanos[at] = System.nanoTime() - startedNanos;
        }
    }

    void failed(String why) {
        if (failures.getAndIncrement() == 0) {
            firstFailure = why;
        }
    }

    /** The answer to the command. */
    JSONObject result(long elapsedNanos, long messages, long bytes) {
        // Before anything is summed up: only the load itself counts.
        double cpuSeconds = (SYSTEM.getProcessCpuTime() - cpuBefore) / 1e9;
        int count = Math.min(recorded.get(), nanos.length);
        long[] sorted = Arrays.copyOf(nanos, count);
        Arrays.sort(sorted);
        JSONObject result = new JSONObject();
        result.put("messages", messages);
        result.put("bytes", bytes);
        result.put("failures", failures.get());
        result.put("firstFailure", firstFailure);
        result.put("seconds", elapsedNanos / 1e9);
        result.put("cpuSeconds", cpuSeconds);
        result.put("p50Us", at(sorted, 0.50));
        result.put("p99Us", at(sorted, 0.99));
        return result;
    }

    private static double at(long[] sorted, double quantile) {
        if (sorted.length == 0) {
            return 0;
        }
        return sorted[(int) Math.min(sorted.length - 1L, (long) (sorted.length * quantile))] / 1e3;
    }
}
