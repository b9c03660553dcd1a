import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * A Redisson client that does what it is told, a line at a time: VERB TYPE NAME; answers one line
 * with the time in ms.
 */
public class Peer {
    public static void main(String[] args) throws Exception {
        Config config = new Config();
        config.useSingleServer().setAddress("redis://127.0.0.1:" + args[0])
                .setConnectionMinimumIdleSize(1);
        RedissonClient client = Redisson.create(config);
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in,
                StandardCharsets.UTF_8));
        out.println("ready");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split("\t");
            String answer;
            try {
                answer = act(client, words);
            } catch (Exception e) {
                answer = "error " + e;
            }
            out.println(answer + "\t" + System.currentTimeMillis());
        }
        client.shutdown();
    }

    private static RLock lock(RedissonClient client, String type, String name) {
        switch (type) {
            case "fair": return client.getFairLock(name);
            case "fenced": return client.getFencedLock(name);
            case "read": return client.getReadWriteLock(name).readLock();
            case "write": return client.getReadWriteLock(name).writeLock();
            default: return client.getLock(name);
        }
    }

    private static RLock both(RedissonClient client, String one, String two) {
        return client.getMultiLock(client.getLock(one), client.getLock(two));
    }

    private static String act(RedissonClient client, String[] words) throws Exception {
        String name = words[2];
        switch (words[0]) {
            case "try": return String.valueOf(lock(client, words[1], name).tryLock());
            case "lock":
                return String.valueOf(lock(client, words[1], name).tryLock(15, TimeUnit.SECONDS));
            case "unlock": lock(client, words[1], name).unlock(); return "done";
            case "count": return String.valueOf(lock(client, words[1], name).getHoldCount());
            case "token": return String.valueOf(client.getFencedLock(name).lockAndGetToken());
            case "permits":
                return String.valueOf(client.getPermitExpirableSemaphore(name).availablePermits());
            case "permit":
                return String.valueOf(client.getPermitExpirableSemaphore(name)
                        .tryAcquire(0, 60, TimeUnit.SECONDS));
            case "release":
                client.getPermitExpirableSemaphore(name).release(words[3]);
                return "done";
            case "rooms":
                return String.valueOf(client.getSemaphore(name)
                        .trySetPermits(Integer.parseInt(words[3])));
            case "room":
                return String.valueOf(client.getSemaphore(name)
                        .tryAcquire(Integer.parseInt(words[3]), 15, TimeUnit.SECONDS));
            case "leave":
                client.getSemaphore(name).release(Integer.parseInt(words[3]));
                return "done";
            case "free": return String.valueOf(client.getSemaphore(name).availablePermits());
            case "close":
                return String.valueOf(client.getCountDownLatch(name)
                        .trySetCount(Long.parseLong(words[3])));
            case "down": client.getCountDownLatch(name).countDown(); return "done";
            case "open":
                return String.valueOf(client.getCountDownLatch(name).await(15, TimeUnit.SECONDS));
            case "left": return String.valueOf(client.getCountDownLatch(name).getCount());
            case "both": return String.valueOf(both(client, name, words[3]).tryLock());
            case "neither": both(client, name, words[3]).unlock(); return "done";
            default: return "what?";
        }
    }
}
