// The cases of client.py, with grpc-go.
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	_ "google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// bytesCodec sends and receives *[]byte as they are.
type bytesCodec struct{}

func (bytesCodec) Marshal(v interface{}) ([]byte, error) { return *v.(*[]byte), nil }
func (bytesCodec) Unmarshal(data []byte, v interface{}) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}
func (bytesCodec) Name() string { return "proto" }

var channel *grpc.ClientConn

func connect(more ...grpc.DialOption) *grpc.ClientConn {
	security := grpc.WithInsecure()
	if os.Args[2] != "-" {
		trusted, err := credentials.NewClientTLSFromFile(os.Args[2], "")
		if err != nil {
			panic(err)
		}
		security = grpc.WithTransportCredentials(trusted)
	}
	options := append(more, security, grpc.WithDefaultCallOptions(
		grpc.ForceCodec(bytesCodec{}), grpc.MaxCallRecvMsgSize(1<<30), grpc.MaxCallSendMsgSize(1<<30)))
	conn, err := grpc.Dial(os.Args[1], options...)
	if err != nil {
		panic(err)
	}
	return conn
}

func call(ctx context.Context, name string, data []byte, options ...grpc.CallOption) ([]byte, error) {
	var answer []byte
	err := channel.Invoke(ctx, "/gate.Echo/"+name, &data, &answer, options...)
	return answer, err
}

func echo(size int, options ...grpc.CallOption) error {
	data := make([]byte, size)
	answer, err := call(context.Background(), "Echo", data, options...)
	if err == nil && !bytes.Equal(answer, data) {
		return fmt.Errorf("another answer")
	}
	return err
}

// stream exchanges single messages.
type stream struct{ grpc.ClientStream }

func open(ctx context.Context, conn *grpc.ClientConn) (stream, error) {
	both := &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
	opened, err := conn.NewStream(ctx, both, "/gate.Echo/Stream")
	return stream{opened}, err
}

func (s stream) exchange(text string) error {
	data, answer := []byte(text), []byte(nil)
	if err := s.SendMsg(&data); err != nil {
		return err
	}
	if err := s.RecvMsg(&answer); err != nil {
		return err
	}
	if string(answer) != text {
		return fmt.Errorf("another answer")
	}
	return nil
}

func streams() error {
	opened, err := open(context.Background(), channel)
	for number := 0; err == nil && number < 100; number++ {
		err = opened.exchange(fmt.Sprint(number))
	}
	if err != nil {
		return err
	}
	if err := opened.CloseSend(); err != nil {
		return err
	}
	var rest []byte
	if err := opened.RecvMsg(&rest); err.Error() != "EOF" {
		return err
	}
	return nil
}

func expect(err error, code codes.Code) error {
	if status.Code(err) != code {
		return fmt.Errorf("%v", status.Code(err))
	}
	return nil
}

func deadline() error {
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	_, err := call(ctx, "Wait", nil)
	return expect(err, codes.DeadlineExceeded)
}

func untilWaiting(count string) error {
	for turn := 0; turn < 200; turn++ {
		if answer, err := call(context.Background(), "Waiting", nil); err != nil || string(answer) == count {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
	return fmt.Errorf("not %s calls", count)
}

func cancelled() error {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() {
		_, err := call(ctx, "Wait", nil)
		ended <- err
	}()
	err := untilWaiting("1")
	cancel()
	if err != nil {
		return err
	}
	if err := untilWaiting("0"); err != nil {
		return err
	}
	return expect(<-ended, codes.Canceled)
}

func beside(count, size int) (string, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	opened, err := open(ctx, channel)
	if err == nil {
		err = opened.exchange("before")
	}
	if err != nil {
		return "", err
	}
	fields := metadata.MD{}
	for number := 0; number < count; number++ {
		fields.Set(fmt.Sprintf("x-%d", number), strings.Repeat("v", size))
	}
	_, refusal := call(metadata.NewOutgoingContext(context.Background(), fields), "Echo", nil)
	code := status.Code(refusal)
	if code == codes.Unavailable {
		return "", refusal
	}
	return " " + code.String(), opened.exchange("behind")
}

func pings() error {
	// grpc-go pings every ten seconds at most.
	conn := connect(grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second}))
	defer conn.Close()
	opened, err := open(context.Background(), conn)
	if err == nil {
		err = opened.exchange("x")
	}
	if err != nil {
		return err
	}
	time.Sleep(25 * time.Second)
	return opened.exchange("y")
}

func callAtOnce() error {
	ended := make(chan error)
	for caller := 0; caller < 100; caller++ {
		go func() { ended <- echo(100) }()
	}
	var failure error
	for caller := 0; caller < 100; caller++ {
		if err := <-ended; err != nil {
			failure = err
		}
	}
	return failure
}

func callUntilItStops() error {
	var callers sync.WaitGroup
	var lock sync.Mutex
	seen := map[string]bool{}
	for caller := 0; caller < 20; caller++ {
		callers.Add(1)
		go func() {
			defer callers.Done()
			var err error
			for err == nil {
				err = echo(1)
			}
			lock.Lock()
			defer lock.Unlock()
			seen[status.Code(err).String()] = true
		}()
	}
	time.Sleep(500 * time.Millisecond)
	fmt.Println("SIGTERM\tready")
	callers.Wait()
	var names []string
	for name := range seen {
		names = append(names, name)
	}
	sort.Strings(names)
	if text := strings.Join(names, " "); text != "Unavailable" {
		return fmt.Errorf("%s", text)
	}
	return nil
}

func main() {
	channel = connect()
	plain := func(run func() error) func() (string, error) {
		return func() (string, error) { return "", run() }
	}
	sized := func(size int, options ...grpc.CallOption) func() (string, error) {
		return plain(func() error { return echo(size, options...) })
	}
	cases := []struct {
		name string
		run  func() (string, error)
	}{
		{"unary", sized(1000)},
		{"streams", plain(streams)},
		{"deadline", plain(deadline)},
		{"cancel", plain(cancelled)},
		{"4 MB", sized(4000000)},
		{"60 MB", sized(60000000)},
		{"gzip", sized(1000000, grpc.UseCompressor("gzip"))},
		{"20 kB of metadata", func() (string, error) { return beside(20, 1000) }},
		{"130 fields", func() (string, error) { return beside(130, 1) }},
		{"pings", plain(pings)},
		{"100 calls", plain(callAtOnce)},
		{"SIGTERM", plain(callUntilItStops)},
	}
	for _, each := range cases {
		seen, err := each.run()
		if err != nil {
			fmt.Printf("%s\t%v\n", each.name, err)
		} else {
			fmt.Printf("%s\tok%s\n", each.name, seen)
		}
	}
}
