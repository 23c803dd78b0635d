import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

/**
 * Puts load on a broker: one JSON object per line in, one per line out, until the input ends.
 *
 * <p>`client` chooses who sends: `java` is the RocketMQ client as an application would use it, `raw` writes prepared
 * frames over plain sockets and is there to keep the client from being the bottleneck.
 */
public final class LoadDriver {
    private LoadDriver() {
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = new PrintStream(System.out, false, "UTF-8");
        // Libraries that print must not write between the answers.
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
        JavaClientLoad.shutdown();
        System.exit(0);
    }

    private static JSONObject run(JSONObject command) throws Exception {
        boolean raw = "raw".equals(command.getString("client"));
        switch (command.getString("op")) {
            case "send":
                return raw ? new RawLoad(command).send() : JavaClientLoad.send(command);
            case "drain":
                return raw ? new RawLoad(command).drain() : JavaClientLoad.drain(command);
            case "push":
                return ConsumeLoad.push(command);
            case "lite":
                return ConsumeLoad.lite(command);
            default:
                throw new IllegalArgumentException("unknown op " + command.getString("op"));
        }
    }
}
