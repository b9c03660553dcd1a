import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.redisson.Redisson;
import org.redisson.RedissonRedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** See peers.py. Its arguments are the members. */
public class Driver {
    private static final ExecutorService THREADS = Executors.newCachedThreadPool();
    public static void main(String[] args) throws Exception {
        List<RedissonClient> clients = new ArrayList<>();
        Config first = null;
        for (String host : args) {
            Config config = new Config();
            config.useSingleServer().setAddress("redis://" + host)
                    .setConnectionMinimumIdleSize(1).setSubscriptionConnectionMinimumIdleSize(1);
            if (first != null) {
                // One set of threads for all members.
                config.setExecutor(first.getExecutor()).setEventLoopGroup(first.getEventLoopGroup());
            } else {
                config.setExecutor(Executors.newCachedThreadPool());
                config.setEventLoopGroup(new io.netty.channel.nio.NioEventLoopGroup());
                first = config;
            }
            clients.add(Redisson.create(config));
        }
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in,
                StandardCharsets.UTF_8));
        warmUp(clients);
        out.println("ready\t" + Redisson.class.getPackage().getImplementationVersion() + "\t"
                + (args.length == 1 ? "RLock, with its watchdog"
                : "RedissonRedLock, one set of threads for all members"));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(turns(clients, line.split("\t")));
        }
        System.exit(0);
    }

    /** In each process, before it is measured: so what is measured is compiled. */
    private static void warmUp(List<RedissonClient> clients) throws Exception {
        if (!"release".equals(System.getenv("PROFILE"))) {
            return;
        }
        String name = "\twarm-" + ProcessHandle.current().pid();
        StringBuilder names = new StringBuilder();
        for (int i = 0; i < 8; i++) {
            names.append(name).append('-').append(i);
        }
        for (String callers : List.of(name, names.toString())) {
            turns(clients, ("turn\t3000" + callers).split("\t"));
        }
    }

    private static RLock lock(List<RedissonClient> clients, String name) {
        RLock[] locks = clients.stream().map(client -> client.getLock(name)).toArray(RLock[]::new);
        return locks.length == 1 ? locks[0] : new RedissonRedLock(locks);
    }

    /** What threads, one for each name, had together. */
    private static String turns(List<RedissonClient> clients, String[] words) throws Exception {
        long time = Long.parseLong(words[1]) * 1_000_000;
        List<Future<String>> had = new ArrayList<>();
        for (int i = 2; i < words.length; i++) {
            RLock lock = lock(clients, words[i]);
            had.add(THREADS.submit(() -> turn(lock, time)));
        }
        StringBuilder answer = new StringBuilder();
        for (Future<String> one : had) {
            answer.append(one.get());
        }
        return answer.toString();
    }

    private static String turn(RLock lock, long time) {
        StringBuilder answer = new StringBuilder();
        long end = System.nanoTime() + time;
        for (long asked = System.nanoTime(); asked < end; asked = System.nanoTime()) {
            lock.lock();
            long had = System.nanoTime();
            lock.unlock();
            answer.append(had - asked).append('/').append(System.nanoTime() - asked).append(' ');
        }
        return answer.toString();
    }
}
