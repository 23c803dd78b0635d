import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * One pull of the real pull consumer per line of input, and which broker it went to: the broker id that the client
 * had stored for the queue, which is the last suggested one.
 */
public final class ReplicationReader {
    private static final int TIMEOUT_MS = 5000;

    private ReplicationReader() {
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = new PrintStream(System.out, false, "UTF-8");
        System.setOut(System.err);
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("replication-reader");
        consumer.setNamesrvAddr(args[0]);
        consumer.start();
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line;
        while ((line = commands.readLine()) != null) {
            JSONObject answer;
            try {
                answer = pull(consumer, JSON.parseObject(line));
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

    private static JSONObject pull(DefaultMQPullConsumer consumer, JSONObject command) throws Exception {
        MessageQueue queue = new MessageQueue(
            command.getString("topic"), command.getString("brokerName"), command.getIntValue("queue"));
        consumer.fetchSubscribeMessageQueues(queue.getTopic());
        long asked = consumer.getDefaultMQPullConsumerImpl().getPullAPIWrapper().recalculatePullFromWhichNode(queue);
        PullResult result = consumer.pull(queue, "*", command.getLongValue("offset"), 32, TIMEOUT_MS);
        JSONObject answer = new JSONObject();
        answer.put("servedBy", asked);
        answer.put("count", result.getPullStatus() == PullStatus.FOUND ? result.getMsgFoundList().size() : 0);
        answer.put("next", result.getNextBeginOffset());
        return answer;
    }
}
