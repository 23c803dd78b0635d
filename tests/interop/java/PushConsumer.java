import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.client.impl.consumer.ProcessQueue;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * A push consumer that reports its events on its output, one JSON object per line: `started`, `message` (each delivery, when its
 * listener ends), `queues` (whenever they change), `stopping`, `stopped`. SIGTERM shuts it down cleanly, SIGKILL like a crash.
 *
 * <p>Options are pairs `--name value`; see main.
 */
public final class PushConsumer {
    private static final int QUEUES_LOOKED_AT_MS = 20;
    private static final int API_TIMEOUT_MS = 20_000;

    private final Map<String, String> options = new HashMap<>();
    private final PrintStream output;
    private String clientId;
    private DefaultMQProducer replier;

    private PushConsumer(String[] arguments) throws Exception {
        for (int i = 0; i + 1 < arguments.length; i += 2) {
            options.put(arguments[i].substring(2), arguments[i + 1]);
        }
        output = new PrintStream(System.out, false, "UTF-8");
        System.setOut(System.err);
    }

    private String option(String name, String otherwise) {
        return options.getOrDefault(name, otherwise);
    }

    private int number(String name, int otherwise) {
        return Integer.parseInt(option(name, Integer.toString(otherwise)));
    }

    /**
     * Required: --name-servers, --group, --topic. Optional: --expression, --type TAG|SQL92, --model clustering|broadcasting,
     * --ordered true, --allocate average|circle|consistent-hash, --from first|last|yyyyMMddHHmmss, --instance, --threads,
     * --batch, --work-ms (per message), --fail-first (deliveries of each message that fail), --fail-body (only messages whose body
     * begins so fail), --delay-level (of failures), --max-reconsume-times, --suspend-ms (ordered failures),
     * --await-ms (how long its shutdown waits for listeners), --namespace, --reply true (to requests, with `re: ` and the body).
     */
    public static void main(String[] arguments) throws Exception {
        try {
            new PushConsumer(arguments).run();
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1); // the client's threads would keep the process alive
        }
    }

    private void run() throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(option("group", null));
        consumer.setNamesrvAddr(option("name-servers", null));
        // The default of three seconds may be too short for a first answer on a loaded machine.
        consumer.setMqClientApiTimeout(API_TIMEOUT_MS);
        if (options.containsKey("namespace")) {
            consumer.setNamespace(options.get("namespace"));
        }
        if (options.containsKey("instance")) {
            consumer.setInstanceName(options.get("instance"));
        }
        // The package of this enum is another one in each major version.
        var models = consumer.getMessageModel().getDeclaringClass();
        consumer.setMessageModel(Enum.valueOf(models, option("model", "clustering").toUpperCase()));
        String from = option("from", "first");
        if (from.equals("first")) {
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        } else if (from.equals("last")) {
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
        } else {
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_TIMESTAMP);
            consumer.setConsumeTimestamp(from);
        }
        consumer.setAllocateMessageQueueStrategy(strategy(option("allocate", "average")));
        int threads = number("threads", 4);
        consumer.setConsumeThreadMin(threads);
        consumer.setConsumeThreadMax(threads);
        consumer.setConsumeMessageBatchMaxSize(number("batch", 1));
        consumer.setMaxReconsumeTimes(number("max-reconsume-times", -1));
        consumer.setSuspendCurrentQueueTimeMillis(number("suspend-ms", 1000));
        consumer.setAwaitTerminationMillisWhenShutdown(number("await-ms", 0));
        for (String topic : option("topic", null).split(",")) {
            if (option("type", "TAG").equals("SQL92")) {
                consumer.subscribe(topic, MessageSelector.bySql(option("expression", "TRUE")));
            } else {
                consumer.subscribe(topic, option("expression", "*"));
            }
        }
        if (Boolean.parseBoolean(option("ordered", "false"))) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) ->
                handle(messages) ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                context.setDelayLevelWhenNextConsume(number("delay-level", 0));
                return handle(messages) ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
        }
        if (Boolean.parseBoolean(option("reply", "false"))) {
            replier = new DefaultMQProducer(option("group", null) + "-replies");
            replier.setNamesrvAddr(option("name-servers", null));
            replier.setSendMsgTimeout(API_TIMEOUT_MS);
            replier.start();
        }
        clientId = consumer.buildMQClientId();
        consumer.start();
        clientId = consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId();
        print("started", new JSONObject(true));
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            print("stopping", new JSONObject(true));
            consumer.shutdown();
            print("stopped", new JSONObject(true));
        }));
        watchQueues(consumer);
    }

    private static AllocateMessageQueueStrategy strategy(String name) {
        switch (name) {
            case "average":
                return new AllocateMessageQueueAveragely();
            case "circle":
                return new AllocateMessageQueueAveragelyByCircle();
            case "consistent-hash":
                return new AllocateMessageQueueConsistentHash();
            default:
                throw new IllegalArgumentException("--allocate " + name);
        }
    }

    /** Prints the queues this member owns (for ordered topics: those it has locked) whenever they change. */
    private void watchQueues(DefaultMQPushConsumer consumer) throws InterruptedException {
        boolean ordered = Boolean.parseBoolean(option("ordered", "false"));
        String before = "";
        while (true) {
            TreeSet<String> owned = new TreeSet<>();
            for (Map.Entry<MessageQueue, ProcessQueue> entry
                : consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().entrySet()) {
                ProcessQueue queue = entry.getValue();
                if (!queue.isDropped() && (!ordered || queue.isLocked())) {
                    MessageQueue name = entry.getKey();
                    owned.add(name.getTopic() + "@" + name.getBrokerName() + "@" + name.getQueueId());
                }
            }
            if (!owned.toString().equals(before)) {
                before = owned.toString();
                JSONObject event = new JSONObject(true);
                event.put("queues", new JSONArray(new ArrayList<>(owned)));
                print("queues", event);
            }
            Thread.sleep(QUEUES_LOOKED_AT_MS);
        }
    }

    /** One delivery: true if it succeeds. */
    private boolean handle(List<MessageExt> messages) {
        long begun = System.currentTimeMillis();
        boolean good = true;
        for (MessageExt message : messages) {
            good &= !fails(message);
        }
        try {
            Thread.sleep((long) number("work-ms", 0) * messages.size());
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
        }
        for (MessageExt message : messages) {
            JSONObject event = new JSONObject(true);
            event.put("topic", message.getTopic());
            event.put("broker", message.getBrokerName());
            event.put("queue", message.getQueueId());
            event.put("offset", message.getQueueOffset());
            event.put("msgId", message.getMsgId());
            // A message consumed on an operator's command is a plain one.
            boolean pulled = message instanceof MessageClientExt;
            event.put("offsetMsgId", pulled ? ((MessageClientExt) message).getOffsetMsgId() : message.getMsgId());
            event.put("keys", message.getKeys());
            event.put("tags", message.getTags());
            event.put("reconsumeTimes", message.getReconsumeTimes());
            event.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
            event.put("begun", begun);
            event.put("storeTime", message.getStoreTimestamp());
            event.put("bornTime", message.getBornTimestamp());
            event.put("properties", new TreeMap<>(message.getProperties()));
            if (replier != null) {
                event.put("reply", reply(message));
            }
            event.put("success", good);
            print("message", event);
        }
        return good;
    }

    /** Replies to a request; the result's status, or what went wrong. */
    private String reply(MessageExt request) {
        try {
            byte[] body = ("re: " + new String(request.getBody(), StandardCharsets.UTF_8)).getBytes(StandardCharsets.UTF_8);
            return replier.send(MessageUtil.createReplyMessage(request, body)).getSendStatus().name();
        } catch (Exception error) {
            return error + ", " + error.getCause();
        }
    }

    private boolean fails(MessageExt message) {
        int limit = number("fail-first", 0);
        if (limit == 0 || !new String(message.getBody(), StandardCharsets.UTF_8).startsWith(option("fail-body", ""))) {
            return false;
        }
        return message.getReconsumeTimes() < limit;
    }

    private void print(String event, JSONObject fields) {
        JSONObject line = new JSONObject(true);
        line.put("event", event);
        line.put("time", System.currentTimeMillis());
        line.put("client", clientId);
        line.putAll(fields);
        synchronized (output) {
            output.println(line.toString(SerializerFeature.WriteMapNullValue));
            output.flush();
        }
    }
}
