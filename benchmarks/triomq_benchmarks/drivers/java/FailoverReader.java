import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Pulls one queue in a loop, as an application of the RocketMQ client would, and reports when it could read again after its master was killed.
 *
 * <p>One JSON object per line in, one per line out. {@code start} opens a fresh client and pulls until it receives messages;
 * {@code await} answers when messages were received again after the first failed pull, in nanoseconds on the machine's
 * monotonic clock, which other processes read as well; -1: not in time.
 */
public final class FailoverReader {
    private static final int MAX_NUMS = 32;
    private static final long PAUSE_MS = 5;
    private static final int ROUTE_ATTEMPTS = 100;
    private static final long ROUTE_PAUSE_MS = 100;
    private static volatile long lastServed;
    private static volatile long failedAfter;
    private static volatile long firstAfter;
    private static volatile boolean running;
    private static int number;

    private FailoverReader() {
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = new PrintStream(System.out, false, "UTF-8");
        System.setOut(System.err);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line;
        Thread reader = null;
        DefaultMQPullConsumer consumer = null;
        while ((line = commands.readLine()) != null) {
            JSONObject answer = new JSONObject();
            try {
                JSONObject command = JSON.parseObject(line);
                switch (command.getString("op")) {
                    case "start": {
                        consumer = open(command);
                        MessageQueue queue = new MessageQueue(
                            command.getString("topic"), command.getString("brokerName"), command.getIntValue("queue"));
                        waitForRoute(consumer, queue.getTopic());
                        running = true;
                        lastServed = 0;
                        failedAfter = 0;
                        DefaultMQPullConsumer pulling = consumer;
                        reader = new Thread(() -> loop(pulling, queue));
                        reader.start();
                        long deadline = System.nanoTime() + 30_000_000_000L;
                        while (lastServed == 0 && System.nanoTime() < deadline) {
                            Thread.sleep(1);
                        }
                        answer.put("nanos", System.nanoTime());
                        answer.put("served", lastServed != 0);
                        break;
                    }
                    case "await": {
                        long deadline = System.nanoTime() + (long) (command.getDoubleValue("limitSeconds") * 1e9);
                        while ((failedAfter == 0 || lastServed <= failedAfter) && System.nanoTime() < deadline) {
                            Thread.sleep(1);
                        }
                        answer.put("nanos", failedAfter != 0 && lastServed > failedAfter ? firstAfter : -1);
                        running = false;
                        reader.join();
                        consumer.shutdown();
                        break;
                    }
                    default:
                        throw new IllegalArgumentException(command.getString("op"));
                }
            } catch (Throwable error) {
                error.printStackTrace();
                answer.put("error", error.toString());
            }
            answers.println(answer.toJSONString());
            answers.flush();
        }
        System.exit(0);
    }

    private static DefaultMQPullConsumer open(JSONObject command) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("failover-java");
        consumer.setNamesrvAddr(command.getString("nameServers"));
        consumer.setInstanceName("failover" + number++);
        // Only routes of topics named here are refreshed, every half minute by default.
        consumer.setRegisterTopics(Set.of(command.getString("topic")));
        consumer.start();
        return consumer;
    }

    /** A new topic or master may have its route only after a delay. */
    private static void waitForRoute(DefaultMQPullConsumer consumer, String topic) throws Exception {
        for (int attempt = 1; true; attempt++) {
            try {
                consumer.fetchSubscribeMessageQueues(topic);
                return;
            } catch (MQClientException error) {
                if (attempt == ROUTE_ATTEMPTS) {
                    throw error;
                }
                Thread.sleep(ROUTE_PAUSE_MS);
            }
        }
    }

    private static void loop(DefaultMQPullConsumer consumer, MessageQueue queue) {
        while (running) {
            try {
                PullResult result = consumer.pull(queue, "*", 0, MAX_NUMS, 3000);
                if (result.getPullStatus() == PullStatus.FOUND) {
                    long now = System.nanoTime();
                    if (failedAfter != 0 && lastServed <= failedAfter) {
                        firstAfter = now;
                    }
                    lastServed = now;
                }
            } catch (Exception error) {
                if (failedAfter == 0) {
                    failedAfter = System.nanoTime();
                }
            }
            try {
                Thread.sleep(PAUSE_MS);
            } catch (InterruptedException error) {
                return;
            }
        }
    }
}
