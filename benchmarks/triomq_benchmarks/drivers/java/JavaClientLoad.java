import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** The load as an application of the RocketMQ client would make it. */
final class JavaClientLoad {
    private static final int SEND_TIMEOUT_MS = 10_000;
    private static final int PULL_MAX_NUMS = 32;
    private static final int ROUTE_TRIES = 50;
    private static final int ROUTE_PAUSE_MS = 100;
    // Clients stay open between commands, as in a long-lived application: opening them is not part of any figure.
    private static final ConcurrentHashMap<String, DefaultMQProducer> PRODUCERS = new ConcurrentHashMap<>();
    private static final ConcurrentHashMap<String, DefaultMQPullConsumer> CONSUMERS = new ConcurrentHashMap<>();

    private JavaClientLoad() {
    }

    static void shutdown() {
        PRODUCERS.values().forEach(DefaultMQProducer::shutdown);
        CONSUMERS.values().forEach(DefaultMQPullConsumer::shutdown);
    }

    private static DefaultMQProducer producer(String nameServers, int link) throws Exception {
        String key = nameServers + "#" + link;
        DefaultMQProducer found = PRODUCERS.get(key);
        if (found == null) {
            found = new DefaultMQProducer("bench_producer");
            found.setNamesrvAddr(nameServers);
            // One client instance, and so one link to the broker, each.
            found.setInstanceName("bench" + PRODUCERS.size());
            found.setSendMsgTimeout(SEND_TIMEOUT_MS);
            found.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
            found.setRetryTimesWhenSendFailed(0);
            found.setRetryTimesWhenSendAsyncFailed(0);
            found.start();
            PRODUCERS.put(key, found);
        }
        return found;
    }

    static JSONObject send(JSONObject command) throws Exception {
        int links = command.getIntValue("links");
        int inFlight = command.getIntValue("inFlight");
        int batch = Math.max(1, command.getIntValue("batch"));
        int calls = command.getIntValue("count") / batch;
        boolean async = "async".equals(command.getString("mode"));
        List<DefaultMQProducer> producers = new ArrayList<>();
        for (int i = 0; i < links; i++) {
            producers.add(producer(command.getString("nameServers"), i));
        }
        Run run = new Run(command, calls, batch);
        List<Thread> threads = new ArrayList<>();
        for (DefaultMQProducer producer : producers) {
            if (async) {
                threads.add(new Thread(() -> run.async(producer, inFlight)));
            } else {
                for (int i = 0; i < inFlight; i++) {
                    threads.add(new Thread(() -> run.sync(producer)));
                }
            }
        }
        long begin = System.nanoTime();
        for (Thread thread : threads) {
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        long elapsed = System.nanoTime() - begin;
        return run.latencies.result(elapsed, run.messages.get(), run.messages.get() * run.bodyBytes);
    }

    /** What the sending threads of one command share. */
    private static final class Run {
        final Latencies latencies;
        final AtomicInteger left;
        final AtomicLong messages = new AtomicLong();
        final int batch;
        final int bodyBytes;
        final String topic;
        final byte[] body;
        final long deadline;

        Run(JSONObject command, int calls, int batch) {
            this.batch = batch;
            latencies = new Latencies(calls);
            left = new AtomicInteger(calls);
            bodyBytes = command.getIntValue("bodyBytes");
            topic = command.getString("topic");
            body = new byte[bodyBytes];
            for (int i = 0; i < bodyBytes; i++) {
                body[i] = (byte) ('a' + i % 26);
            }
            deadline = System.nanoTime() + (long) (command.getDoubleValue("maxSeconds") * 1e9);
        }

        boolean more() {
            return left.getAndDecrement() > 0 && System.nanoTime() < deadline;
        }

        Message message() {
            return new Message(topic, "bench", body);
        }

        List<Message> messages() {
            List<Message> list = new ArrayList<>(batch);
            for (int i = 0; i < batch; i++) {
                list.add(message());
            }
            return list;
        }

        void record(SendResult result, long started) {
            if (result.getSendStatus() == SendStatus.SEND_OK) {
                messages.addAndGet(batch);
                latencies.record(started);
            } else {
                latencies.failed(result.getSendStatus().name());
            }
        }

        void sync(DefaultMQProducer producer) {
            while (more()) {
                long started = System.nanoTime();
                try {
                    record(batch > 1 ? producer.send(messages()) : producer.send(message()), started);
                } catch (Exception error) {
                    latencies.failed(error.toString());
                }
            }
        }

        void async(DefaultMQProducer producer, int inFlight) {
            Semaphore permits = new Semaphore(inFlight);
            while (more()) {
                permits.acquireUninterruptibly();
                long started = System.nanoTime();
                SendCallback callback = new SendCallback() {
                    @Override
                    public void onSuccess(SendResult result) {
                        record(result, started);
                        permits.release();
                    }

                    @Override
                    public void onException(Throwable error) {
                        latencies.failed(error.toString());
                        permits.release();
                    }
                };
                try {
                    if (batch > 1) {
                        producer.send(messages(), callback);
                    } else {
                        producer.send(message(), callback);
                    }
                } catch (Exception error) {
                    callback.onException(error);
                }
            }
            permits.acquireUninterruptibly(inFlight);
        }
    }

    static JSONObject drain(JSONObject command) throws Exception {
        String topic = command.getString("topic");
        String nameServers = command.getString("nameServers");
        DefaultMQPullConsumer consumer = CONSUMERS.get(nameServers);
        if (consumer == null) {
            consumer = new DefaultMQPullConsumer("bench_consumer");
            consumer.setNamesrvAddr(nameServers);
            consumer.setInstanceName("benchpull" + CONSUMERS.size());
            consumer.start();
            CONSUMERS.put(nameServers, consumer);
        }
        Set<MessageQueue> queues = queues(consumer, topic);
        AtomicLong left = new AtomicLong(command.getLongValue("count"));
        AtomicLong messages = new AtomicLong();
        AtomicLong bytes = new AtomicLong();
        Latencies latencies = new Latencies((int) Math.min(1 << 22, left.get()));
        long deadline = System.nanoTime() + (long) (command.getDoubleValue("maxSeconds") * 1e9);
        List<Thread> threads = new ArrayList<>();
        for (MessageQueue queue : queues) {
            DefaultMQPullConsumer pulling = consumer;
            threads.add(new Thread(() -> drainQueue(pulling, queue, left, messages, bytes, latencies, deadline)));
        }
        long begin = System.nanoTime();
        for (Thread thread : threads) {
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        return latencies.result(System.nanoTime() - begin, messages.get(), bytes.get());
    }

    /** The queues of a topic; one that was created by a send is registered at the name server with a delay. */
    private static Set<MessageQueue> queues(DefaultMQPullConsumer consumer, String topic) throws Exception {
        for (int attempt = 0; attempt < ROUTE_TRIES; attempt++) {
            try {
                return consumer.fetchSubscribeMessageQueues(topic);
            } catch (MQClientException error) {
                Thread.sleep(ROUTE_PAUSE_MS);
            }
        }
        return consumer.fetchSubscribeMessageQueues(topic);
    }

    private static void drainQueue(DefaultMQPullConsumer consumer, MessageQueue queue, AtomicLong left,
            AtomicLong messages, AtomicLong bytes, Latencies latencies, long deadline) {
        long offset = 0;
        try {
            while (left.get() > 0 && System.nanoTime() < deadline) {
                long started = System.nanoTime();
                PullResult result = consumer.pull(queue, "*", offset, PULL_MAX_NUMS);
                latencies.record(started);
                offset = result.getNextBeginOffset();
                if (result.getPullStatus() == PullStatus.OFFSET_ILLEGAL) {
                    continue;
                }
                if (result.getPullStatus() != PullStatus.FOUND) {
                    return;
                }
                long size = 0;
                for (MessageExt message : result.getMsgFoundList()) {
                    size += message.getBody().length;
                }
                int count = result.getMsgFoundList().size();
                messages.addAndGet(count);
                bytes.addAndGet(size);
                left.addAndGet(-count);
            }
        } catch (Exception error) {
            latencies.failed(error.toString());
        }
    }
}
