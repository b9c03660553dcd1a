import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.barriers.DistributedBarrier;
import org.apache.curator.framework.recipes.barriers.DistributedDoubleBarrier;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.framework.recipes.locks.Revoker;
import org.apache.curator.retry.ExponentialBackoffRetry;

/**
 * A Curator client that does what it is told, a line at a time: VERB KIND NAME; answers one line
 * with the time in ms.
 */
public class Peer {
    private static final Map<String, InterProcessMutex> LOCKS = new HashMap<>();
    private static final Map<String, InterProcessReadWriteLock> PAIRS = new HashMap<>();
    private static final Map<String, Lease> LEASES = new HashMap<>();
    private static final Map<String, LeaderLatch> LATCHES = new HashMap<>();
    private static final Map<String, DistributedDoubleBarrier> DOUBLES = new HashMap<>();
    private static final Semaphore ASKED = new Semaphore(0);
    private static CuratorFramework client;

    public static void main(String[] args) throws Exception {
        int session = Integer.parseInt(args[1]);
        client = CuratorFrameworkFactory.newClient(args[0], session, 10_000,
                new ExponentialBackoffRetry(100, 3));
        client.start();
        client.blockUntilConnected();
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in,
                StandardCharsets.UTF_8));
        out.println("ready");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String answer;
            try {
                answer = act(line.split("\t"));
            } catch (Exception e) {
                answer = "error " + e;
            }
            out.println(answer + "\t" + System.currentTimeMillis());
        }
        client.close();
    }

    private static InterProcessMutex lock(String kind, String name) {
        if (kind.equals("mutex")) {
            return LOCKS.computeIfAbsent(name, n -> new InterProcessMutex(client, "/" + n));
        }
        InterProcessReadWriteLock pair = PAIRS.computeIfAbsent(name,
                n -> new InterProcessReadWriteLock(client, "/" + n));
        return kind.equals("read") ? pair.readLock() : pair.writeLock();
    }

    private static String act(String[] words) throws Exception {
        String kind = words[1], name = words[2];
        switch (words[0]) {
            case "try": return String.valueOf(lock(kind, name).acquire(0, TimeUnit.SECONDS));
            case "lock": return String.valueOf(lock(kind, name).acquire(15, TimeUnit.SECONDS));
            case "unlock": lock(kind, name).release(); return "done";
            case "revoke":
                Revoker.attemptRevoke(client, lock(kind, name).getParticipantNodes().iterator()
                        .next());
                return "done";
            case "revocable":
                LOCKS.put(name, new InterProcessMutex(client, "/" + name));
                LOCKS.get(name).makeRevocable(l -> ASKED.release());
                return "done";
            case "asked": return String.valueOf(ASKED.tryAcquire(15, TimeUnit.SECONDS));
            case "enter": {
                DistributedDoubleBarrier barrier = new DistributedDoubleBarrier(client, "/" + name,
                        Integer.parseInt(words[3]));
                DOUBLES.put(name, barrier);
                return String.valueOf(barrier.enter(15, TimeUnit.SECONDS));
            }
            case "exit": return String.valueOf(DOUBLES.remove(name).leave(15, TimeUnit.SECONDS));
            case "permit": {
                int limit = Integer.parseInt(words[3]);
                Lease lease = new InterProcessSemaphoreV2(client, "/" + name, limit)
                        .acquire(Integer.parseInt(kind), TimeUnit.SECONDS);
                if (lease != null) {
                    LEASES.put(name + LEASES.size(), lease);
                }
                return String.valueOf(lease != null);
            }
            case "release": {
                String any = LEASES.keySet().iterator().next();
                LEASES.remove(any).close();
                return "done";
            }
            case "close": new DistributedBarrier(client, "/" + name).setBarrier(); return "done";
            case "open": new DistributedBarrier(client, "/" + name).removeBarrier(); return "done";
            case "await":
                return String.valueOf(new DistributedBarrier(client, "/" + name)
                        .waitOnBarrier(15, TimeUnit.SECONDS));
            case "stand":
                LATCHES.put(name, new LeaderLatch(client, "/" + name, kind));
                LATCHES.get(name).start();
                return "done";
            case "lead": return String.valueOf(LATCHES.get(name).await(15, TimeUnit.SECONDS));
            case "leader": return LATCHES.get(name).getLeader().getId();
            case "leave": LATCHES.remove(name).close(); return "done";
            default: return "what?";
        }
    }
}
