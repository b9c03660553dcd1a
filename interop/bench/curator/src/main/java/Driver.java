import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;

/** See peers.py. Its argument is the server, with the path below which it locks. */
public class Driver {
    private static final ExecutorService THREADS = Executors.newCachedThreadPool();
    private static CuratorFramework client;

    public static void main(String[] args) throws Exception {
        client = CuratorFrameworkFactory.newClient(args[0], new ExponentialBackoffRetry(100, 3));
        client.start();
        client.blockUntilConnected();
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in,
                StandardCharsets.UTF_8));
        warmUp();
        out.println("ready\t" + version() + "\tInterProcessMutex");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(turns(line.split("\t")));
        }
        System.exit(0);
    }

    /** Of its jar's name: its manifest has none. */
    private static String version() {
        String path = InterProcessMutex.class.getProtectionDomain().getCodeSource().getLocation()
                .getPath();
        return path.replaceAll(".*-([0-9.]+)\\.jar", "$1");
    }

    /** In each process, before it is measured: so what is measured is compiled. */
    private static void warmUp() throws Exception {
        if (!"release".equals(System.getenv("PROFILE"))) {
            return;
        }
        String name = "\twarm-" + ProcessHandle.current().pid();
        StringBuilder names = new StringBuilder();
        for (int i = 0; i < 8; i++) {
            names.append(name).append('-').append(i);
        }
        for (String callers : List.of(name, names.toString())) {
            turns(("turn\t3000" + callers).split("\t"));
        }
    }

    /** What threads, one for each name, had together. */
    private static String turns(String[] words) throws Exception {
        long time = Long.parseLong(words[1]) * 1_000_000;
        List<Future<String>> had = new ArrayList<>();
        for (int i = 2; i < words.length; i++) {
            String name = words[i];
            had.add(THREADS.submit(() -> turn(name, time)));
        }
        StringBuilder answer = new StringBuilder();
        for (Future<String> one : had) {
            answer.append(one.get());
        }
        return answer.toString();
    }

    private static String turn(String name, long time) throws Exception {
        // One mutex for each, as for threads that know nothing of each other.
        InterProcessMutex mutex = new InterProcessMutex(client, "/" + name);
        StringBuilder answer = new StringBuilder();
        long end = System.nanoTime() + time;
        for (long asked = System.nanoTime(); asked < end; asked = System.nanoTime()) {
            mutex.acquire();
            long had = System.nanoTime();
            mutex.release();
            answer.append(had - asked).append('/').append(System.nanoTime() - asked).append(' ');
        }
        return answer.toString();
    }
}
