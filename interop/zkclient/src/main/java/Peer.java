import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.CountDownLatch;
import org.I0Itec.zkclient.ZkClient;

/**
 * One of the articles' locks: `Peer ADDRESS VARIANT` does what it is told, a line at a time (begin,
 * is-in, standing, unlock), and answers one line with the time in ms;
 * `Peer ADDRESS VARIANT INSIDE TURNS` lets ten threads take it so many times each.
 */
public class Peer {
    private static final int SESSION_MS = 4_000;
    private static volatile boolean isIn;

    public static void main(String[] args) throws Exception {
        if (args.length > 2) {
            tenThreads(args[0], args[1], Path.of(args[2]), Integer.parseInt(args[3]));
            return;
        }
        ZkClient client = new ZkClient(args[0], SESSION_MS, 10_000);
        Articles lock = Articles.of(args[1], client);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String answer;
            try {
                answer = act(client, lock, line);
            } catch (Exception e) {
                answer = "error " + e;
            }
            System.out.println(answer + "\t" + System.currentTimeMillis());
        }
        client.close();
    }

    private static String act(ZkClient client, Articles lock, String verb) throws Exception {
        switch (verb) {
            case "begin":
                Thread waiting = new Thread(() -> {
                    try {
                        lock.lock();
                        isIn = true;
                    } catch (InterruptedException e) {
                        Thread.currentThread().interrupt();
                    }
                });
                waiting.setDaemon(true);
                waiting.start();
                return "true";
            case "is-in":
                return String.valueOf(isIn);
            case "standing":
                return String.valueOf(client.countChildren(Articles.PATH));
            case "unlock":
                isIn = false;
                lock.unlock();
                return "true";
            default:
                throw new IllegalArgumentException(verb);
        }
    }

    private static void tenThreads(String address, String variant, Path inside,
            int turns) throws InterruptedException {
        CountDownLatch all = new CountDownLatch(10);
        System.out.println("ready");
        for (int n = 0; n < 10; n++) {
            new Thread(() -> {
                ZkClient client = new ZkClient(address, SESSION_MS, 10_000);
                Articles lock = Articles.of(variant, client);
                try {
                    for (int turn = 0; turn < turns; turn++) {
                        lock.lock();
                        Files.createFile(inside);
                        System.out.println(Thread.currentThread().getName() + " has it");
                        Thread.sleep(5);
                        Files.delete(inside);
                        lock.unlock();
                    }
                } catch (Exception e) {
                    System.out.println("error " + e);
                } finally {
                    client.close();
                    all.countDown();
                }
            }, "thread-" + n).start();
        }
        all.await();
        System.out.println("done");
    }
}
