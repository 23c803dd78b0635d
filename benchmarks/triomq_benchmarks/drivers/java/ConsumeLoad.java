import com.alibaba.fastjson.JSONObject;
import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.Collection;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Consumers that read a filled topic from its beginning, as an application of the RocketMQ client would. */
final class ConsumeLoad {
    private static final OperatingSystemMXBean SYSTEM =
        (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    private static final long POLL_MS = 1000;
    private static final AtomicInteger NUMBER = new AtomicInteger();

    private ConsumeLoad() {
    }

    /** What has been consumed, timed from the first message to the last that is wanted. */
    private static final class Tally {
        private final long wanted;
        private final AtomicLong messages = new AtomicLong();
        private final AtomicLong bytes = new AtomicLong();
        private final CountDownLatch done = new CountDownLatch(1);
        private volatile boolean begun;
        private long beganNanos;
        private long beganCpuNanos;
        private JSONObject result;

        Tally(long wanted) {
            this.wanted = wanted;
        }

        private synchronized void begin() {
            if (!begun) {
                beganCpuNanos = SYSTEM.getProcessCpuTime();
                beganNanos = System.nanoTime();
                begun = true;
            }
        }

        void count(List<MessageExt> found) {
            if (!begun) {
                begin();
            }
            long size = 0;
            for (MessageExt message : found) {
                size += message.getBody().length;
            }
            bytes.addAndGet(size);
            long before = messages.getAndAdd(found.size());
            if (before < wanted && before + found.size() >= wanted) {
                end(before + found.size());
            }
        }

        private void end(long counted) {
            JSONObject figures = new JSONObject();
            figures.put("seconds", (System.nanoTime() - beganNanos) / 1e9);
            figures.put("cpuSeconds", (SYSTEM.getProcessCpuTime() - beganCpuNanos) / 1e9);
            figures.put("messages", counted);
            figures.put("bytes", bytes.get());
            result = figures;
            done.countDown();
        }

        boolean isDone() {
            return done.getCount() == 0;
        }

        JSONObject await(double seconds) throws Exception {
            if (!done.await((long) (seconds * 1000), TimeUnit.MILLISECONDS)) {
                throw new IllegalStateException("only " + messages.get() + " of " + wanted + " messages in " + seconds + " s");
            }
            return result;
        }
    }

    static JSONObject push(JSONObject command) throws Exception {
        Tally tally = new Tally(command.getLongValue("count"));
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(command.getString("group"));
        consumer.setNamesrvAddr(command.getString("nameServers"));
        consumer.setInstanceName("push" + NUMBER.incrementAndGet());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullBatchSize(command.getIntValue("pullBatch"));
        consumer.setConsumeThreadMin(command.getIntValue("concurrency"));
        consumer.setConsumeThreadMax(command.getIntValue("concurrency"));
        consumer.subscribe(command.getString("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            tally.count(messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        try {
            return tally.await(command.getDoubleValue("maxSeconds"));
        } finally {
            consumer.shutdown();
        }
    }

    static JSONObject lite(JSONObject command) throws Exception {
        Tally tally = new Tally(command.getLongValue("count"));
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(command.getString("group"));
        consumer.setNamesrvAddr(command.getString("nameServers"));
        consumer.setInstanceName("lite" + NUMBER.incrementAndGet());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullBatchSize(command.getIntValue("pullBatch"));
        consumer.start();
        try {
            long deadline = System.nanoTime() + (long) (command.getDoubleValue("maxSeconds") * 1e9);
            Collection<MessageQueue> queues = consumer.fetchMessageQueues(command.getString("topic"));
            consumer.assign(queues);
            while (!tally.isDone() && System.nanoTime() < deadline) {
                List<MessageExt> found = consumer.poll(POLL_MS);
                if (!found.isEmpty()) {
                    tally.count(found);
                }
            }
            return tally.await(0);
        } finally {
            consumer.shutdown();
        }
    }
}
