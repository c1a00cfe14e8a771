// The cases of client.py, with grpc-java.
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientInterceptors;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.GrpcSslContexts;
import io.grpc.netty.NettyChannelBuilder;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.MetadataUtils;
import io.grpc.stub.StreamObserver;
import java.io.ByteArrayInputStream;
import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

public final class Client {
    private static final MethodDescriptor.Marshaller<byte[]> BYTES = new MethodDescriptor.Marshaller<>() {
        @Override
        public InputStream stream(byte[] data) {
            return new ByteArrayInputStream(data);
        }

        @Override
        public byte[] parse(InputStream data) {
            try {
                return data.readAllBytes();
            } catch (IOException error) {
                throw new IllegalStateException(error);
            }
        }
    };
    private static String address;
    private static String authority;
    private static ManagedChannel channel;

    private static ManagedChannel connect(int pingSeconds) throws Exception {
        NettyChannelBuilder builder = NettyChannelBuilder.forTarget(address).maxInboundMessageSize(1 << 30);
        if (authority.equals("-")) {
            builder.usePlaintext();
        } else {
            builder.sslContext(GrpcSslContexts.forClient().trustManager(new File(authority)).build());
        }
        if (pingSeconds > 0) {
            builder.keepAliveTime(pingSeconds, TimeUnit.SECONDS);
        }
        return builder.build();
    }

    private static MethodDescriptor<byte[], byte[]> method(String name, MethodDescriptor.MethodType kind) {
        return MethodDescriptor.newBuilder(BYTES, BYTES)
            .setType(kind).setFullMethodName("gate.Echo/" + name).build();
    }

    private static byte[] call(Channel by, String name, byte[] data, CallOptions options) {
        return ClientCalls.blockingUnaryCall(by, method(name, MethodDescriptor.MethodType.UNARY), options, data);
    }

    private static void check(boolean holds, String text) {
        if (!holds) {
            throw new IllegalStateException(text);
        }
    }

    private static String echo(int size, CallOptions options) {
        byte[] data = new byte[size];
        check(Arrays.equals(call(channel, "Echo", data, options), data), "another answer");
        return "";
    }

    private static Status.Code codeOf(Callable<?> run) throws Exception {
        try {
            run.call();
            return Status.Code.OK;
        } catch (StatusRuntimeException error) {
            return error.getStatus().getCode();
        }
    }

    /** A stream that exchanges single messages. */
    private static final class Stream implements StreamObserver<byte[]> {
        private final BlockingQueue<String> received = new LinkedBlockingQueue<>();
        private final StreamObserver<byte[]> requests;

        Stream(Channel by) {
            requests = ClientCalls.asyncBidiStreamingCall(
                by.newCall(method("Stream", MethodDescriptor.MethodType.BIDI_STREAMING), CallOptions.DEFAULT), this);
        }

        @Override
        public void onNext(byte[] data) {
            received.add(new String(data));
        }

        @Override
        public void onError(Throwable error) {
            received.add("error " + error.getMessage());
        }

        @Override
        public void onCompleted() {
            received.add("the end");
        }

        void exchange(String text) throws InterruptedException {
            requests.onNext(text.getBytes());
            expect(text);
        }

        void close() throws InterruptedException {
            requests.onCompleted();
            expect("the end");
        }

        private void expect(String text) throws InterruptedException {
            String next = received.poll(20, TimeUnit.SECONDS);
            check(text.equals(next), "" + next);
        }
    }

    private static String streams() throws Exception {
        Stream stream = new Stream(channel);
        for (int number = 0; number < 100; number++) {
            stream.exchange("" + number);
        }
        stream.close();
        return "";
    }

    private static String deadline() throws Exception {
        CallOptions soon = CallOptions.DEFAULT.withDeadlineAfter(200, TimeUnit.MILLISECONDS);
        Status.Code code = codeOf(() -> call(channel, "Wait", new byte[0], soon));
        check(code == Status.Code.DEADLINE_EXCEEDED, code.name());
        return "";
    }

    private static void untilWaiting(String count) throws InterruptedException {
        for (int turn = 0; turn < 200; turn++) {
            if (new String(call(channel, "Waiting", new byte[0], CallOptions.DEFAULT)).equals(count)) {
                return;
            }
            Thread.sleep(50);
        }
        throw new IllegalStateException("not " + count + " calls");
    }

    private static String cancel() throws Exception {
        Future<byte[]> call = ClientCalls.futureUnaryCall(
            channel.newCall(method("Wait", MethodDescriptor.MethodType.UNARY), CallOptions.DEFAULT), new byte[0]);
        untilWaiting("1");
        call.cancel(true);
        untilWaiting("0");
        return "";
    }

    private static String beside(int count, int size) throws Exception {
        Stream stream = new Stream(channel);
        stream.exchange("before");
        Metadata metadata = new Metadata();
        for (int number = 0; number < count; number++) {
            metadata.put(Metadata.Key.of("x-" + number, Metadata.ASCII_STRING_MARSHALLER), "v".repeat(size));
        }
        Channel by = ClientInterceptors.intercept(channel, MetadataUtils.newAttachHeadersInterceptor(metadata));
        Status.Code code = codeOf(() -> call(by, "Echo", new byte[0], CallOptions.DEFAULT));
        check(code != Status.Code.UNAVAILABLE, code.name());
        stream.exchange("behind");
        stream.close();
        return " " + code;
    }

    private static String pings() throws Exception {
        ManagedChannel by = connect(10);  // grpc-java pings every ten seconds at most
        Stream stream = new Stream(by);
        stream.exchange("x");
        Thread.sleep(25_000);
        stream.exchange("y");
        stream.close();
        by.shutdownNow();
        return "";
    }

    /** Connects 40 times, and echoes 100 kB as the first call. */
    private static String connections() throws Exception {
        ManagedChannel shared = channel;
        for (int number = 0; number < 40; number++) {
            channel = connect(0);
            echo(100_000, CallOptions.DEFAULT);
            channel.shutdownNow();
        }
        channel = shared;
        return "";
    }

    private static Set<Status.Code> codesOfThreads(int count, Callable<Status.Code> run) throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(count);
        List<Future<Status.Code>> ends = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            ends.add(threads.submit(run));
        }
        Set<Status.Code> codes = new TreeSet<>();
        for (Future<Status.Code> end : ends) {
            codes.add(end.get());
        }
        threads.shutdown();
        return codes;
    }

    private static String callAtOnce() throws Exception {
        Set<Status.Code> codes = codesOfThreads(100, () -> codeOf(() -> echo(100, CallOptions.DEFAULT)));
        check(codes.equals(Set.of(Status.Code.OK)), codes.toString());
        return "";
    }

    private static String callUntilItStops() throws Exception {
        Thread ready = new Thread(() -> {
            try {
                Thread.sleep(500);
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
            System.out.println("SIGTERM\tready");
        });
        ready.start();
        Set<Status.Code> codes = codesOfThreads(20, () -> {
            Status.Code code = Status.Code.OK;
            while (code == Status.Code.OK) {
                code = codeOf(() -> echo(1, CallOptions.DEFAULT));
            }
            return code;
        });
        check(codes.equals(Set.of(Status.Code.UNAVAILABLE)), codes.toString());
        return "";
    }

    private static void run(String name, Callable<String> test) {
        String seen;
        try {
            seen = "ok" + test.call();
        } catch (Exception error) {
            seen = error.toString().replace('\n', ' ');
        }
        System.out.println(name + "\t" + seen);
    }

    public static void main(String[] arguments) throws Exception {
        address = arguments[0];
        authority = arguments[1];
        channel = connect(0);
        run("unary", () -> echo(1000, CallOptions.DEFAULT));
        run("streams", Client::streams);
        run("deadline", Client::deadline);
        run("cancel", Client::cancel);
        run("4 MB", () -> echo(4_000_000, CallOptions.DEFAULT));
        run("60 MB", () -> echo(60_000_000, CallOptions.DEFAULT));
        run("gzip", () -> echo(1_000_000, CallOptions.DEFAULT.withCompression("gzip")));
        run("20 kB of metadata", () -> beside(20, 1000));
        run("130 fields", () -> beside(130, 1));
        run("pings", Client::pings);
        run("100 calls", Client::callAtOnce);
        run("40 connections", Client::connections);
        run("SIGTERM", Client::callUntilItStops);
        System.exit(0);
    }
}
