import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;

/**
 * How many times a second Curator's mutex is acquired and released: ADDRESS NAME THREADS SECONDS,
 * after as long a warm-up.
 */
public class Rate {
    public static void main(String[] args) throws Exception {
        int threads = Integer.parseInt(args[2]);
        long time = Long.parseLong(args[3]) * 1_000_000_000L;
        CuratorFramework client = CuratorFrameworkFactory.newClient(args[0],
                new ExponentialBackoffRetry(100, 3));
        client.start();
        client.blockUntilConnected();
        long warm = System.nanoTime() + time, end = warm + time;
        AtomicLong holds = new AtomicLong();
        CountDownLatch left = new CountDownLatch(threads);
        for (int i = 0; i < threads; i++) {
            new Thread(() -> {
                try {
                    // One mutex for each, as for threads that know nothing of each other.
                    InterProcessMutex mutex = new InterProcessMutex(client, "/" + args[1]);
                    for (long now = System.nanoTime(); now < end; now = System.nanoTime()) {
                        mutex.acquire();
                        mutex.release();
                        if (now >= warm) {
                            holds.incrementAndGet();
                        }
                    }
                    left.countDown();
                } catch (Exception e) {
                    System.err.println(e);
                    System.exit(1);
                }
            }).start();
        }
        left.await();
        client.close();
        System.out.printf("%.1f%n", holds.get() * 1e9 / time);
    }
}
