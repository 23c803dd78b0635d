import com.alibaba.fastjson.JSONObject;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

/**
 * A minimal client of the protocol: prepared frames over plain non-blocking sockets, one thread, all
 * answers of one read followed by one write. It reads of an answer only its size, its opaque and its code, so that the
 * broker under it is what the figures show, and not the client.
 */
final class RawLoad {
    private static final int SEND_READ_BYTES = 256 << 10;
    private static final int PULL_READ_BYTES = 4 << 20;
    private static final int FIRST_OPAQUE = 1_000_000;
    private static final int PULL_MAX_NUMS = 32;
    private static final byte[] OPAQUE = "\"opaque\":".getBytes(StandardCharsets.US_ASCII);
    private static final byte[] CODE = "\"code\":".getBytes(StandardCharsets.US_ASCII);
    private static final byte[] NEXT = "\"nextBeginOffset\":\"".getBytes(StandardCharsets.US_ASCII);
    private static final int PULL_OK = 0;

    private final InetSocketAddress broker;
    private final String topic;
    private final int queues;
    private final int count;
    private final int bodyBytes;
    private final long maxNanos;
    private final JSONObject command;

    RawLoad(JSONObject command) {
        this.command = command;
        String[] address = command.getString("broker").split(":");
        broker = new InetSocketAddress(address[0], Integer.parseInt(address[1]));
        topic = command.getString("topic");
        queues = command.getIntValue("queues");
        count = command.getIntValue("count");
        bodyBytes = command.getIntValue("bodyBytes");
        maxNanos = (long) (command.getDoubleValue("maxSeconds") * 1e9);
    }

    /** One request in flight: its frame is written repeatedly, with a new key each time. */
    private abstract static class Slot {
        ByteBuffer frame;
        long startedNanos;
        long offset;

        /** Prepares the next request; false when this slot has no more requests. */
        abstract boolean next();
    }

    private static final class Link {
        SocketChannel channel;
        final List<Slot> slots = new ArrayList<>();
        ByteBuffer out = ByteBuffer.allocateDirect(1 << 20);
        final ByteBuffer in;

        Link(int readBytes) {
            in = ByteBuffer.allocateDirect(readBytes);
        }

        void append(ByteBuffer frame) {
            if (out.remaining() < frame.capacity()) {
                ByteBuffer larger = ByteBuffer.allocateDirect(out.capacity() * 2 + frame.capacity());
                out.flip();
                larger.put(out);
                out = larger;
            }
            frame.clear();
            out.put(frame);
        }
    }

    private long messages;
    private long bytes;
    private long asked;
    private long requests;
    private int perAnswer;

    JSONObject send() throws IOException {
        int links = command.getIntValue("links");
        int inFlight = command.getIntValue("inFlight");
        perAnswer = Math.max(1, command.getIntValue("batch"));
        requests = count / perAnswer;
        Latencies latencies = new Latencies((int) requests);
        List<Link> all = new ArrayList<>();
        for (int l = 0; l < links; l++) {
            Link link = new Link(SEND_READ_BYTES);
            for (int k = 0; k < inFlight; k++) {
                link.slots.add(new SendSlot(k, (l + k) % queues));
            }
            all.add(link);
        }
        return run(all, latencies, false);
    }

    JSONObject drain() throws IOException {
        requests = Long.MAX_VALUE;
        Latencies latencies = new Latencies(count);
        Link link = new Link(PULL_READ_BYTES);
        for (int q = 0; q < queues; q++) {
            link.slots.add(new PullSlot(q));
        }
        return run(List.of(link), latencies, true);
    }

    private final class SendSlot extends Slot {
        private final int[] keyAt;

        SendSlot(int index, int queueId) {
            byte[] body = new byte[bodyBytes];
            for (int i = 0; i < body.length; i++) {
                body[i] = (byte) ('a' + i % 26);
            }
            String unique = "7F0000010001" + "0000000000000000" + "00000000".substring(4);
            String single = "UNIQ_KEY\u0001" + unique + "\u0002WAIT\u0001true\u0002TAGS\u0001bench";
            String key = perAnswer > 1 ? "WAIT\\u0001true" : single.replace("\u0001", "\\u0001").replace("\u0002", "\\u0002");
            String header = "{\"code\":" + (perAnswer > 1 ? 320 : 310) + ",\"extFields\":{\"a\":\"bench_producer\",\"b\":\""
                + topic + "\",\"c\":\"TBW102\",\"d\":\"4\",\"e\":\"" + queueId + "\",\"f\":\"0\",\"g\":\""
                + System.currentTimeMillis() + "\",\"h\":\"0\",\"i\":\"" + key + "\",\"j\":\"0\",\"k\":\"false\",\"m\":\""
                + (perAnswer > 1) + "\",\"n\":\"" + command.getString("brokerName") + "\"},\"flag\":0,\"language\":\"JAVA\",\"opaque\":"
                + (FIRST_OPAQUE + index) + ",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":407}";
            frame = frame(header, perAnswer > 1 ? batch(body, single) : body);
            keyAt = find(frame, unique.getBytes(StandardCharsets.US_ASCII), perAnswer);
        }

        @Override
        boolean next() {
            if (asked >= requests) {
                return false;
            }
            for (int at : keyAt) {
                long number = asked * perAnswer + at;
                for (int digit = 27; digit >= 12; digit--) {
                    frame.put(at + digit, (byte) "0123456789ABCDEF".charAt((int) (number & 15)));
                    number >>>= 4;
                }
            }
            asked++;
            return true;
        }
    }

    private final class PullSlot extends Slot {
        private final int queueId;

        PullSlot(int queueId) {
            this.queueId = queueId;
        }

        @Override
        boolean next() {
            if (offset < 0 || messages >= count) {
                return false;
            }
            frame = frame("{\"code\":11,\"extFields\":{\"queueId\":\"" + queueId + "\",\"maxMsgNums\":\"" + PULL_MAX_NUMS
                + "\",\"sysFlag\":\"4\",\"suspendTimeoutMillis\":\"0\",\"commitOffset\":\"0\",\"topic\":\"" + topic
                + "\",\"queueOffset\":\"" + offset + "\",\"subscription\":\"*\",\"expressionType\":\"TAG\",\"subVersion\":\"0\","
                + "\"consumerGroup\":\"bench_consumer\"},\"flag\":0,\"language\":\"JAVA\",\"opaque\":" + (FIRST_OPAQUE + queueId)
                + ",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":407}", new byte[0]);
            return true;
        }
    }

    private static ByteBuffer frame(String header, byte[] body) {
        byte[] head = header.getBytes(StandardCharsets.UTF_8);
        ByteBuffer frame = ByteBuffer.allocate(8 + head.length + body.length);
        frame.putInt(4 + head.length + body.length).putInt(head.length).put(head).put(body);
        return frame;
    }

    private byte[] batch(byte[] body, String properties) {
        byte[] props = properties.getBytes(StandardCharsets.UTF_8);
        int size = 4 + 4 + 4 + 4 + 4 + body.length + 2 + props.length;
        ByteBuffer all = ByteBuffer.allocate(size * perAnswer);
        for (int i = 0; i < perAnswer; i++) {
            all.putInt(size).putInt(0).putInt(0).putInt(0).putInt(body.length).put(body);
            all.putShort((short) props.length).put(props);
        }
        return all.array();
    }

    private static int[] find(ByteBuffer frame, byte[] wanted, int times) {
        int[] found = new int[times];
        int from = 0;
        for (int i = 0; i < times; i++) {
            found[i] = indexOf(frame, from, frame.capacity(), wanted);
            from = found[i] + wanted.length;
        }
        return found;
    }

    private static int indexOf(ByteBuffer buffer, int from, int to, byte[] wanted) {
        outer:
        for (int at = from; at <= to - wanted.length; at++) {
            for (int i = 0; i < wanted.length; i++) {
                if (buffer.get(at + i) != wanted[i]) {
                    continue outer;
                }
            }
            return at;
        }
        return -1;
    }

    private static long number(ByteBuffer buffer, int at) {
        long value = 0;
        for (int c = buffer.get(at); c >= '0' && c <= '9'; c = buffer.get(++at)) {
            value = value * 10 + (c - '0');
        }
        return value;
    }

    private JSONObject run(List<Link> links, Latencies latencies, boolean pulls) throws IOException {
        try (Selector selector = Selector.open()) {
            for (Link link : links) {
                link.channel = SocketChannel.open(broker);
                link.channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
                link.channel.configureBlocking(false);
                link.channel.register(selector, SelectionKey.OP_READ, link);
            }
            long begin = System.nanoTime();
            int waiting = 0;
            for (Link link : links) {
                for (Slot slot : link.slots) {
                    waiting += ask(link, slot);
                }
                flush(link);
            }
            while (waiting > 0) {
                if (System.nanoTime() - begin > maxNanos) {
                    requests = 0;
                    if (System.nanoTime() - begin > maxNanos + 5_000_000_000L) {
                        throw new IOException("answers are missing: " + waiting);
                    }
                }
                selector.select(1000);
                for (SelectionKey key : selector.selectedKeys()) {
                    waiting += answers((Link) key.attachment(), latencies, pulls);
                }
                selector.selectedKeys().clear();
            }
            return latencies.result(System.nanoTime() - begin, messages, bytes);
        } finally {
            for (Link link : links) {
                if (link.channel != null) {
                    link.channel.close();
                }
            }
        }
    }

    private int ask(Link link, Slot slot) {
        if (!slot.next()) {
            return 0;
        }
        slot.startedNanos = System.nanoTime();
        link.append(slot.frame);
        return 1;
    }

    /** Writes all that is waiting; a full socket is waited for, with what has arrived read by the next round. */
    private static void flush(Link link) throws IOException {
        link.out.flip();
        while (link.out.hasRemaining()) {
            if (link.channel.write(link.out) == 0) {
                Thread.onSpinWait();
            }
        }
        link.out.clear();
    }

    private int answers(Link link, Latencies latencies, boolean pulls) throws IOException {
        if (link.channel.read(link.in) < 0) {
            throw new IOException("the broker closed the link");
        }
        int waiting = 0;
        ByteBuffer in = link.in;
        int at = 0;
        int end = in.position();
        while (end - at >= 8) {
            int size = in.getInt(at) + 4;
            if (end - at < size) {
                break;
            }
            int headerSize = in.getInt(at + 4) & 0xFFFFFF;
            waiting += answer(link, at + 8, at + 8 + headerSize, at + size, latencies, pulls) - 1;
            at += size;
        }
        in.position(at).limit(end);
        in.compact();
        flush(link);
        return waiting;
    }

    /** Takes one answer; returns 1 when its slot has sent another request. */
    private int answer(Link link, int header, int body, int end, Latencies latencies, boolean pulls) {
        int opaque = (int) number(link.in, indexOf(link.in, header, body, OPAQUE) + OPAQUE.length);
        int code = (int) number(link.in, indexOf(link.in, header, body, CODE) + CODE.length);
        Slot slot = link.slots.get(opaque - FIRST_OPAQUE);
        if (!pulls) {
            if (code == 0) {
                latencies.record(slot.startedNanos);
                messages += perAnswer;
                bytes += (long) perAnswer * bodyBytes;
            } else {
                latencies.failed(text(link.in, header, body));
            }
            return ask(link, slot);
        }
        if (code == PULL_OK) {
            latencies.record(slot.startedNanos);
            int found = 0;
            for (int at = body; at < end; at += link.in.getInt(at)) {
                found++;
            }
            messages += found;
            bytes += end - body;
            slot.offset = number(link.in, indexOf(link.in, header, body, NEXT) + NEXT.length);
        } else {
            // Code 19 is the end of the queue; anything else is a failure of the drain.
            if (code != 19) {
                latencies.failed(text(link.in, header, body));
            }
            slot.offset = -1;
        }
        return ask(link, slot);
    }

    private static String text(ByteBuffer in, int from, int to) {
        byte[] header = new byte[to - from];
        for (int i = from; i < to; i++) {
            header[i - from] = in.get(i);
        }
        return new String(header, StandardCharsets.UTF_8);
    }
}
