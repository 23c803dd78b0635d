import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.MQPullConsumerScheduleService;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * The real client and the real admin tool in one process: one JSON object per line in, one per line out.
 *
 * <p>Bodies are encoded as base64. Names of fields are those of the Java getters.
 */
public final class InteropClient {
    // Part of all client ids: two of these processes may talk to one broker, which knows clients by their ids. With one
    // id for both, Java's broker sends replies to the wrong one.
    private static final long PROCESS = ProcessHandle.current().pid();
    // A loaded machine may pause: a send that is retried would be stored twice.
    private static final int TIMEOUT_MS = 60_000;
    private static final Map<String, DefaultMQProducer> PRODUCERS = new ConcurrentHashMap<>();
    private static final Map<String, DefaultMQPullConsumer> CONSUMERS = new ConcurrentHashMap<>();
    private static final Map<String, Set<Integer>> SHARES = new ConcurrentHashMap<>();
    private static final Map<String, MQPullConsumerScheduleService> SERVICES = new ConcurrentHashMap<>();

    private InteropClient() {
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = new PrintStream(System.out, false, "UTF-8");
        System.setOut(System.err);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line;
        while ((line = commands.readLine()) != null) {
            JSONObject answer;
            try {
                answer = run(JSON.parseObject(line));
            } catch (Throwable error) {
                error.printStackTrace();
                answer = new JSONObject();
                answer.put("error", error.toString());
            }
            answers.println(answer.toJSONString());
            answers.flush();
        }
        System.exit(0);
    }

    private static JSONObject run(JSONObject command) throws Exception {
        switch (command.getString("op")) {
            case "send":
                return send(command);
            case "transact":
                return transact(command);
            case "request":
                return request(command);
            case "pull":
                return pull(command);
            case "lite":
                return lite(command);
            case "share":
                return share(command);
            case "offsets":
                return offsets(command);
            case "commit":
                return commit(command);
            case "query":
                return query(command);
            case "view":
                return found(List.of(consumer(command).viewMessage(command.getString("topic"), command.getString("id"))));
            case "admin":
                return admin(command);
            case "status":
                return status(command);
            case "close":
                return close(command);
            default:
                throw new IllegalArgumentException("unknown op " + command.getString("op"));
        }
    }

    private static DefaultMQProducer producer(JSONObject command) throws Exception {
        String nameServers = command.getString("nameServers");
        String namespace = command.getString("namespace");
        String key = namespace == null ? nameServers : nameServers + "#namespace-" + namespace;
        DefaultMQProducer producer = PRODUCERS.get(key);
        if (producer == null) {
            producer = new DefaultMQProducer(namespace, "java_producer");
            producer.setNamesrvAddr(nameServers);
            producer.setInstanceName("producer-" + PROCESS + "-" + key.hashCode());
            producer.setSendMsgTimeout(TIMEOUT_MS);
            producer.setRetryTimesWhenSendFailed(0);
            producer.setRetryTimesWhenSendAsyncFailed(0);
            producer.start();
            PRODUCERS.put(key, producer);
        }
        return producer;
    }

    private static DefaultMQPullConsumer consumer(JSONObject command) throws Exception {
        String group = command.containsKey("group") ? command.getString("group") : "java_consumer";
        String key = command.getString("nameServers") + "#" + group;
        DefaultMQPullConsumer consumer = CONSUMERS.get(key);
        if (consumer == null) {
            consumer = new DefaultMQPullConsumer(group);
            consumer.setNamesrvAddr(command.getString("nameServers"));
            consumer.setInstanceName("consumer-" + PROCESS + "-" + key.hashCode());
            consumer.start();
            CONSUMERS.put(key, consumer);
        }
        return consumer;
    }

    /** The offsets that each member of a group has in its memory, as each answers; no mqadmin command queries them. */
    private static JSONObject status(JSONObject command) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(TIMEOUT_MS);
        admin.setNamesrvAddr(command.getString("nameServers"));
        admin.setInstanceName("status-" + System.nanoTime());
        admin.start();
        try {
            JSONObject clients = new JSONObject(true);
            admin.getConsumeStatus(command.getString("topic"), command.getString("group"), command.getString("client"))
                .forEach((client, offsets) -> {
                    JSONObject queues = new JSONObject(true);
                    offsets.forEach((queue, offset) -> queues.put(Integer.toString(queue.getQueueId()), offset));
                    clients.put(client, queues);
                });
            JSONObject answer = new JSONObject();
            answer.put("clients", clients);
            return answer;
        } finally {
            admin.shutdown();
        }
    }

    /** Closes the clients of a name server, alone or among others, so that they do not keep querying it when it has stopped. */
    private static JSONObject close(JSONObject command) {
        String nameServer = command.getString("nameServers");
        close(PRODUCERS, nameServer, DefaultMQProducer::shutdown);
        close(CONSUMERS, nameServer, DefaultMQPullConsumer::shutdown);
        close(SERVICES, nameServer, MQPullConsumerScheduleService::shutdown);
        close(SHARES, nameServer, Set::clear);
        return new JSONObject();
    }

    private static <T> void close(Map<String, T> clients, String nameServer, Consumer<T> shutdown) {
        for (String key : List.copyOf(clients.keySet())) {
            if (List.of(key.split("#", 2)[0].split(";")).contains(nameServer)) {
                shutdown.accept(clients.remove(key));
            }
        }
    }

    private static Message message(String topic, JSONObject from) {
        Message message = new Message(topic, Base64.getDecoder().decode(from.getString("body")));
        if (from.containsKey("tags")) {
            message.setTags(from.getString("tags"));
        }
        if (from.containsKey("keys")) {
            message.setKeys(from.getString("keys"));
        }
        if (from.containsKey("flag")) {
            message.setFlag(from.getIntValue("flag"));
        }
        if (from.containsKey("delay")) {
            message.setDelayTimeLevel(from.getIntValue("delay"));
        }
        JSONObject properties = from.getJSONObject("properties");
        if (properties != null) {
            for (String name : properties.keySet()) {
                message.putUserProperty(name, properties.getString(name));
            }
        }
        return message;
    }

    private static JSONObject send(JSONObject command) throws Exception {
        DefaultMQProducer producer = producer(command);
        List<Message> messages = new ArrayList<>();
        for (Object from : command.getJSONArray("messages")) {
            messages.add(message(command.getString("topic"), (JSONObject) from));
        }
        JSONArray results = new JSONArray();
        switch (command.getString("mode")) {
            case "sync":
                for (Message message : messages) {
                    results.add(result(producer.send(message)));
                }
                break;
            case "inTurn":
                // Without a random start: the n-th message goes to the n-th queue.
                for (int i = 0; i < messages.size(); i++) {
                    int number = i;
                    results.add(result(producer.send(messages.get(i),
                        (queues, message, arg) -> new ArrayList<>(new TreeSet<>(queues)).get(number % queues.size()), null)));
                }
                break;
            case "async":
                sendAsync(producer, messages, results);
                break;
            case "oneway":
                for (Message message : messages) {
                    producer.sendOneway(message);
                }
                break;
            case "batch":
                results.add(result(producer.send(messages)));
                break;
            default:
                throw new IllegalArgumentException(command.getString("mode"));
        }
        JSONObject answer = new JSONObject();
        answer.put("results", results);
        return answer;
    }

    /** A request, and the reply to it. */
    private static JSONObject request(JSONObject command) throws Exception {
        Message asked = message(command.getString("topic"), command);
        return found(List.of((MessageExt) producer(command).request(asked, command.getLongValue("timeout"))));
    }

    /** Half messages, each told the state with which its body begins; the producer answers checks until it is closed. */
    private static JSONObject transact(JSONObject command) throws Exception {
        LocalTransactionState check = LocalTransactionState.valueOf(command.getString("check"));
        TransactionMQProducer producer = new TransactionMQProducer(command.getString("group"));
        producer.setNamesrvAddr(command.getString("nameServers"));
        producer.setInstanceName("transactions-" + System.nanoTime());
        producer.setSendMsgTimeout(TIMEOUT_MS);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object arg) {
                return LocalTransactionState.valueOf(new String(message.getBody(), StandardCharsets.UTF_8).split(" ")[0]);
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return check;
            }
        });
        producer.start();
        JSONArray ids = new JSONArray();
        for (Object body : command.getJSONArray("bodies")) {
            Message message = new Message(command.getString("topic"), body.toString().getBytes(StandardCharsets.UTF_8));
            ids.add(producer.sendMessageInTransaction(message, null).getMsgId());
        }
        if (check == LocalTransactionState.UNKNOW) {
            producer.shutdown();
        } else {
            PRODUCERS.put(command.getString("nameServers") + "#" + command.getString("group"), producer);
        }
        JSONObject answer = new JSONObject();
        answer.put("ids", ids);
        return answer;
    }

    private static void sendAsync(DefaultMQProducer producer, List<Message> messages, JSONArray results) throws Exception {
        CountDownLatch waiting = new CountDownLatch(messages.size());
        List<String> failures = new ArrayList<>();
        for (Message message : messages) {
            producer.send(message, new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    synchronized (results) {
                        results.add(result(result));
                    }
                    waiting.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    synchronized (failures) {
                        failures.add(error.toString());
                    }
                    waiting.countDown();
                }
            });
        }
        if (!waiting.await(30, TimeUnit.SECONDS) || !failures.isEmpty()) {
            throw new IllegalStateException("async sends failed or unanswered: " + failures);
        }
    }

    private static JSONObject result(SendResult result) {
        JSONObject answer = new JSONObject();
        answer.put("status", result.getSendStatus().name());
        answer.put("msgId", result.getMsgId());
        answer.put("offsetMsgId", result.getOffsetMsgId());
        answer.put("brokerName", result.getMessageQueue().getBrokerName());
        answer.put("queueId", result.getMessageQueue().getQueueId());
        answer.put("queueOffset", result.getQueueOffset());
        return answer;
    }

    /** All messages of a topic that match, queue by queue, from the smallest offset to the end. */
    private static JSONObject pull(JSONObject command) throws Exception {
        DefaultMQPullConsumer consumer = consumer(command);
        String tags = command.containsKey("tags") ? command.getString("tags") : "*";
        List<MessageExt> all = new ArrayList<>();
        for (MessageQueue queue : queues(consumer, command)) {
            long offset = consumer.minOffset(queue);
            while (true) {
                PullResult result = consumer.pull(queue, tags, offset, 32);
                offset = result.getNextBeginOffset();
                if (result.getPullStatus() == PullStatus.FOUND) {
                    all.addAll(result.getMsgFoundList());
                } else if (result.getPullStatus() == PullStatus.NO_NEW_MSG) {
                    break;
                }
            }
        }
        return found(all);
    }

    /** Messages of a topic as a lite pull consumer gets them, until there are so many. */
    private static JSONObject lite(JSONObject command) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(command.getString("group"));
        consumer.setNamesrvAddr(command.getString("nameServers"));
        consumer.setInstanceName("lite-" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        consumer.subscribe(command.getString("topic"), command.getString("tags"));
        consumer.start();
        try {
            List<MessageExt> all = new ArrayList<>();
            long deadline = System.currentTimeMillis() + TIMEOUT_MS;
            while (all.size() < command.getIntValue("count") && System.currentTimeMillis() < deadline) {
                all.addAll(consumer.poll(1000));
            }
            consumer.commitSync();
            return found(all);
        } finally {
            consumer.shutdown();
        }
    }

    /** A member of a group that pulls its share of a topic: the queues that it has pulled within a second or so. */
    private static JSONObject share(JSONObject command) throws Exception {
        String key = command.getString("nameServers") + "#" + command.getString("group");
        Set<Integer> pulled = SHARES.get(key);
        if (pulled == null) {
            Set<Integer> mine = pulled = ConcurrentHashMap.newKeySet();
            SHARES.put(key, mine);
            MQPullConsumerScheduleService service = new MQPullConsumerScheduleService(command.getString("group"));
            service.getDefaultMQPullConsumer().setNamesrvAddr(command.getString("nameServers"));
            service.getDefaultMQPullConsumer().setInstanceName(command.getString("instance"));
            service.setPullThreadNums(1);
            service.registerPullTaskCallback(command.getString("topic"), (queue, context) -> {
                mine.add(queue.getQueueId());
                context.setPullNextDelayTimeMillis(100);
            });
            service.start();
            SERVICES.put(key, service);
        }
        pulled.clear();
        Thread.sleep(1000);
        JSONObject answer = new JSONObject();
        answer.put("queues", new TreeSet<>(pulled));
        return answer;
    }

    private static TreeSet<MessageQueue> queues(DefaultMQPullConsumer consumer, JSONObject command) throws Exception {
        return new TreeSet<>(consumer.fetchSubscribeMessageQueues(command.getString("topic")));
    }

    private static JSONObject found(List<MessageExt> messages) {
        JSONArray list = new JSONArray();
        for (MessageExt message : messages) {
            JSONObject one = new JSONObject();
            one.put("body", Base64.getEncoder().encodeToString(message.getBody()));
            one.put("tags", message.getTags());
            one.put("keys", message.getKeys());
            one.put("flag", message.getFlag());
            one.put("sysFlag", message.getSysFlag());
            one.put("msgId", String.valueOf(message.getMsgId())); // a reply has none
            one.put("brokerName", message.getBrokerName());
            one.put("queueId", message.getQueueId());
            one.put("queueOffset", message.getQueueOffset());
            one.put("commitLogOffset", message.getCommitLogOffset());
            one.put("storeSize", message.getStoreSize());
            one.put("bodyCRC", message.getBodyCRC());
            one.put("bornTimestamp", message.getBornTimestamp());
            one.put("storeTimestamp", message.getStoreTimestamp());
            one.put("bornHost", message.getBornHostString());
            one.put("storeHost", String.valueOf(message.getStoreHost()));
            one.put("reconsumeTimes", message.getReconsumeTimes());
            one.put("properties", new TreeMap<>(message.getProperties()));
            list.add(one);
        }
        JSONObject answer = new JSONObject();
        answer.put("messages", list);
        return answer;
    }

    private static JSONObject offsets(JSONObject command) throws Exception {
        DefaultMQPullConsumer consumer = consumer(command);
        JSONArray list = new JSONArray();
        for (MessageQueue queue : queues(consumer, command)) {
            JSONObject one = new JSONObject();
            one.put("queueId", queue.getQueueId());
            one.put("brokerName", queue.getBrokerName());
            one.put("min", consumer.minOffset(queue));
            one.put("max", consumer.maxOffset(queue));
            one.put("earliest", consumer.earliestMsgStoreTime(queue));
            one.put("committed", consumer.fetchConsumeOffset(queue, true));
            if (command.containsKey("time")) {
                one.put("byTime", consumer.searchOffset(queue, command.getLongValue("time")));
            }
            list.add(one);
        }
        JSONObject answer = new JSONObject();
        answer.put("queues", list);
        return answer;
    }

    private static JSONObject commit(JSONObject command) throws Exception {
        DefaultMQPullConsumer consumer = consumer(command);
        for (MessageQueue queue : queues(consumer, command)) {
            consumer.getDefaultMQPullConsumerImpl().updateConsumeOffset(queue, command.getLongValue("offset"));
        }
        consumer.getDefaultMQPullConsumerImpl().persistConsumerOffset();
        consumer.getOffsetStore().persistAll(queues(consumer, command));
        return new JSONObject();
    }

    private static JSONObject query(JSONObject command) throws Exception {
        QueryResult result = consumer(command).queryMessage(
            command.getString("topic"), command.getString("key"), command.getIntValue("max"), 0, Long.MAX_VALUE);
        return found(result.getMessageList());
    }

    /** Whether a command has printed all and closes its client, which takes a client of 5.5.0 three seconds. */
    private static boolean isClosing(Thread running) {
        for (StackTraceElement frame : running.getStackTrace()) {
            if (frame.getClassName().endsWith("NettyRemotingClient") && frame.getMethodName().equals("shutdown")) {
                return true;
            }
        }
        return false;
    }

    /** Runs one mqadmin command line in this process and returns what it printed; some never end by themselves. */
    private static JSONObject admin(JSONObject command) throws Exception {
        List<String> arguments = command.getJSONArray("arguments").toJavaList(String.class);
        long limitMs = command.getLongValue("limitMs");
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream before = System.out;
        PrintStream errorsBefore = System.err;
        System.setOut(new PrintStream(printed, true, "UTF-8"));
        System.setErr(System.out);
        try {
            Thread running = new Thread(() -> MQAdminStartup.main0(arguments.toArray(new String[0]), null));
            running.start();
            long end = limitMs == 0 ? Long.MAX_VALUE : System.currentTimeMillis() + limitMs;
            while (running.isAlive() && System.currentTimeMillis() < end && !isClosing(running)) {
                running.join(10);
            }
            running.interrupt();
            running.join(TIMEOUT_MS);
        } finally {
            System.out.flush();
            System.setOut(before);
            System.setErr(errorsBefore);
        }
        JSONObject answer = new JSONObject();
        answer.put("output", printed.toString("UTF-8"));
        return answer;
    }
}
