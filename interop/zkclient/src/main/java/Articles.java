import java.util.Collections;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import org.I0Itec.zkclient.IZkDataListener;
import org.I0Itec.zkclient.ZkClient;

/**
 * The articles' two locks on ZkClient, step by step as they go wrong: one value a thread, one hold
 * at a time.
 */
abstract class Articles {
    static final String PATH = "/lock";
    final ZkClient client;
    String node;
    String before;

    Articles(ZkClient client) {
        this.client = client;
    }

    static Articles of(String variant, ZkClient client) {
        return variant.equals("no-second-look") ? new NoSecondLook(client)
                : new LatchAfterExists(client);
    }

    /** Waits for the lock. */
    abstract void lock() throws InterruptedException;

    void unlock() {
        client.delete(node);
        node = null;
    }

    /**
     * The list as texts; answers whether our node is the first, and else remembers the one before
     * it.
     */
    boolean isFirst() {
        List<String> children = client.getChildren(PATH);
        Collections.sort(children);
        int place = Collections.binarySearch(children, node.substring(PATH.length() + 1));
        if (place == 0) {
            return true;
        }
        before = PATH + "/" + children.get(place - 1);
        return false;
    }

    /** Counts a latch down when the node before ours is deleted. */
    abstract static class Deleted implements IZkDataListener {
        public void handleDataChange(String path, Object data) {}
    }

    /** Once the node before its own is gone it is in, whoever else stands there. */
    static class NoSecondLook extends Articles {
        NoSecondLook(ZkClient client) {
            super(client);
        }

        void lock() throws InterruptedException {
            node = client.createEphemeralSequential(PATH + "/", "lock");
            if (isFirst()) {
                return;
            }
            CountDownLatch gone = new CountDownLatch(1);
            IZkDataListener listener = new Deleted() {
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

    /**
     * It looks again, but makes its latch after it has asked: a deletion between the two counts
     * nothing down.
     */
    static class LatchAfterExists extends Articles {
        private volatile CountDownLatch gone;

        LatchAfterExists(ZkClient client) {
            super(client);
        }

        void lock() throws InterruptedException {
            if (node == null) {
                node = client.createEphemeralSequential(PATH + "/", "Lock");
            }
            if (isFirst()) {
                return;
            }
            waitForBefore();
            lock();
        }

        private void waitForBefore() throws InterruptedException {
            IZkDataListener listener = new Deleted() {
                public void handleDataDeleted(String path) {
                    if (gone != null) {
                        gone.countDown();
                    }
                }
            };
            client.subscribeDataChanges(before, listener);
            if (client.exists(before)) {
                gone = new CountDownLatch(1);
                gone.await();
            }
            client.unsubscribeDataChanges(before, listener);
        }
    }
}
