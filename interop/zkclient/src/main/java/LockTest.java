import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import org.I0Itec.zkclient.IZkDataListener;
import org.I0Itec.zkclient.ZkClient;

/**
 * The lock on ZkClient as it should be: it looks again after each wake-up. Its nodes begin with
 * Lock. Ten threads want it, each so many times.
 */
public class LockTest {
    public static void main(String[] args) throws Exception {
        Path inside = Path.of(args[1]);
        int turns = Integer.parseInt(args[2]);
        CountDownLatch all = new CountDownLatch(10);
        System.out.println("ready");
        for (int n = 0; n < 10; n++) {
            new Thread(() -> {
                ZkClient client = new ZkClient(args[0], 4_000, 10_000);
                try {
                    for (int turn = 0; turn < turns; turn++) {
                        String node = lock(client);
                        Files.createFile(inside);
                        System.out.println(Thread.currentThread().getName() + " has it");
                        Thread.sleep(5);
                        Files.delete(inside);
                        client.delete(node);
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

    private static String lock(ZkClient client) throws InterruptedException {
        String node = client.createEphemeralSequential("/lock/Lock", "lock");
        while (true) {
            List<String> children = client.getChildren("/lock");
            Collections.sort(children);
            int place = children.indexOf(node.substring("/lock/".length()));
            if (place == 0) {
                return node;
            }
            String before = "/lock/" + children.get(place - 1);
            CountDownLatch gone = new CountDownLatch(1);
            IZkDataListener listener = new IZkDataListener() {
                public void handleDataChange(String path, Object data) {}

                public void handleDataDeleted(String path) {
                    gone.countDown();
                }
            };
            client.subscribeDataChanges(before, listener);
            if (client.exists(before)) {
                gone.await();
            }
            client.unsubscribeDataChanges(before, listener);
        }
    }
}
