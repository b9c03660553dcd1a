import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletionException;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.RedissonMultiLock;
import org.redisson.RedissonRedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.RedisException;
import org.redisson.config.Config;

/**
 * Redisson's RedissonRedLock, which does what it is told, a line at a time: VERB NAME …; answers
 * each line with the time in ms. The arguments are how long Redisson's watchdog lets a lock live,
 * in ms, of which locks it is made, plain or fair, or that it is a RedissonMultiLock, multi, and
 * the ports of the members.
 */
public class Peer {
    private static final List<RedissonClient> CLIENTS = new ArrayList<>();
    private static final Map<String, RLock> HELD = new HashMap<>();
    private static boolean fair;
    /** It needs all members, and not a majority. */
    private static boolean multi;

    public static void main(String[] args) throws Exception {
        fair = args[1].equals("fair");
        multi = args[1].equals("multi");
        for (int i = 2; i < args.length; i++) {
            Config config = new Config();
            config.setLockWatchdogTimeout(Long.parseLong(args[0])).setThreads(2)
                    .setNettyThreads(2);
            // A member that is away is to cost no seconds.
            config.useSingleServer().setAddress("redis://127.0.0.1:" + args[i])
                    .setConnectionMinimumIdleSize(1).setTimeout(1000).setRetryAttempts(0);
            CLIENTS.add(Redisson.create(config));
        }
        warmUp();
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in,
                StandardCharsets.UTF_8));
        out.println("ready");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split("\t");
            String answer;
            try {
                answer = act(words);
            } catch (Exception e) {
                answer = "error " + e.toString().replaceAll("\\s+", " ");
            }
            out.println(answer + "\t" + System.currentTimeMillis());
        }
        System.exit(0);
    }

    /**
     * Until each member has answered within the time limit: the first calls read classes from a
     * disk that may be slow, while the limit already runs.
     */
    private static void warmUp() throws Exception {
        for (RedissonClient client : CLIENTS) {
            RLock lock = lock(client, "warm up " + ProcessHandle.current().pid());
            for (int left = 20;; left--) {
                try {
                    if (lock.tryLock(-1, 1000, TimeUnit.MILLISECONDS)) {
                        lock.unlock();
                        break;
                    }
                } catch (RedisException | IllegalMonitorStateException e) {
                    if (left == 0) {
                        throw e;
                    }
                }
                Thread.sleep(100);
            }
        }
    }

    private static RLock lock(RedissonClient client, String name) {
        return fair ? client.getFairLock(name) : client.getLock(name);
    }

    private static RLock lock(String name) {
        RLock[] each = CLIENTS.stream().map(client -> lock(client, name)).toArray(RLock[]::new);
        return multi ? new RedissonMultiLock(each) : new RedissonRedLock(each);
    }

    private static boolean take(String name, long waitMs, long leaseMs) throws Exception {
        RLock lock = lock(name);
        boolean taken = lock.tryLock(waitMs, leaseMs, TimeUnit.MILLISECONDS);
        if (taken) {
            HELD.put(name, lock);
        }
        return taken;
    }

    private static boolean holds(String name) {
        long members = CLIENTS.stream().filter(client -> {
            try {
                return lock(client, name).isHeldByCurrentThread();
            } catch (RedisException e) {
                return false;
            }
        }).count();
        return multi ? members == CLIENTS.size() : members > CLIENTS.size() / 2;
    }

    /** A RedissonRedLock's unlock never says whether it was the holder's; a multi-lock's throws. */
    private static boolean release(String name) {
        boolean held = holds(name);
        try {
            HELD.get(name).unlock();
        } catch (CompletionException | IllegalMonitorStateException e) {
            if (held || !multi) {
                throw e;
            }
        }
        return held;
    }

    private static String act(String[] words) throws Exception {
        String name = words[1];
        switch (words[0]) {
            case "try": return String.valueOf(take(name, -1, Long.parseLong(words[2])));
            // The watchdog extends it.
            case "keep": return String.valueOf(take(name, -1, -1));
            case "extend": return String.valueOf(holds(name));
            case "lock": return String.valueOf(take(name, 15_000, Long.parseLong(words[2])));
            case "unlock": return String.valueOf(release(name));
            case "sell": return String.valueOf(sell(name, Path.of(words[2]), words[3]));
            default: return "error what?";
        }
    }

    /**
     * Waits as its own lock() without a lease does: a second and a half for each member, and then
     * anew. It asks one member after the other and keeps those that it has, for twice the time that
     * it may wait, so in one long wait three of these stand in each other's way for a fifth of that
     * time at each member.
     */
    private static void takeForSale(String name) throws Exception {
        long end = System.nanoTime() + TimeUnit.MINUTES.toNanos(1);
        while (!take(name, 1500L * CLIENTS.size(), 6000)) {
            if (System.nanoTime() > end) {
                throw new IOException("not obtained in a minute");
            }
        }
    }

    /**
     * Takes one from the stock in the file as often as there are orders and the stock lasts: a
     * read, a pause, and a write, which only the lock keeps together.
     */
    private static int sell(String name, Path file, String orders) throws Exception {
        int sold = 0;
        for (int left = Integer.parseInt(orders); left > 0; left--) {
            takeForSale(name);
            int stock = Integer.parseInt(Files.readString(file));
            Thread.sleep(2);
            if (stock > 0) {
                Files.writeString(file, String.valueOf(stock - 1));
                sold++;
            }
            if (!release(name)) {
                throw new IOException("lost while it sold");
            }
        }
        return sold;
    }
}
