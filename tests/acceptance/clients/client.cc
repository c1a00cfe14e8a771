// The cases of client.py, with gRPC for C++.
#include <grpc/grpc.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using grpc::ByteBuffer;
using grpc::ClientContext;
using grpc::Status;
using grpc::StatusCode;
using namespace std::chrono_literals;

std::string address, authority;
std::shared_ptr<grpc::Channel> channel;

void check(bool holds, const std::string& text) {
  if (!holds) throw std::runtime_error(text);
}

std::shared_ptr<grpc::Channel> connect(int ping_ms = 0) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  if (ping_ms) {
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, ping_ms);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  }
  auto credentials = grpc::InsecureChannelCredentials();
  if (authority != "-") {
    std::ifstream file(authority);
    std::stringstream text;
    text << file.rdbuf();
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = text.str();
    credentials = grpc::SslCredentials(options);
  }
  return grpc::CreateCustomChannel(address, credentials, arguments);
}

ByteBuffer packed(const std::string& text) {
  grpc::Slice slice(text);
  return ByteBuffer(&slice, 1);
}

std::string unpacked(const ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string text;
  if (!buffer.Valid()) return text;
  buffer.Dump(&slices);
  for (const auto& slice : slices)
    text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return text;
}

Status call(ClientContext& context, const std::string& name, const std::string& data,
            std::string* answer = nullptr) {
  grpc::GenericStub stub(channel);
  grpc::CompletionQueue queue;
  auto unary = stub.PrepareUnaryCall(&context, "/gate.Echo/" + name, packed(data), &queue);
  unary->StartCall();
  ByteBuffer response;
  Status status;
  unary->Finish(&response, &status, nullptr);
  void* tag;
  bool ok;
  queue.Next(&tag, &ok);
  if (answer != nullptr) *answer = unpacked(response);
  return status;
}

std::string echo(size_t size, bool compressed = false) {
  ClientContext context;
  if (compressed) context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  std::string data(size, '\0'), answer;
  Status status = call(context, "Echo", data, &answer);
  check(status.ok(), status.error_message());
  check(answer == data, "another answer");
  return "";
}

// A stream that exchanges single messages.
class Stream {
 public:
  explicit Stream(std::shared_ptr<grpc::Channel> by) : stub_(std::move(by)) {
    call_ = stub_.PrepareCall(&context_, "/gate.Echo/Stream", &queue_);
    call_->StartCall(nullptr);
    next();
  }

  ~Stream() {
    context_.TryCancel();
    end();
  }

  void exchange(const std::string& text) {
    call_->Write(packed(text), nullptr);
    check(next(), "not written");
    ByteBuffer answer;
    call_->Read(&answer, nullptr);
    check(next() && unpacked(answer) == text, "no answer");
  }

  void close() {
    call_->WritesDone(nullptr);
    next();
    ByteBuffer rest;
    call_->Read(&rest, nullptr);
    check(!next() && end().ok(), "another end");
  }

 private:
  bool next() {
    void* tag;
    bool ok = false;
    queue_.Next(&tag, &ok);
    return ok;
  }

  Status end() {
    if (!ended_) {
      ended_ = true;
      call_->Finish(&status_, nullptr);
      next();
    }
    return status_;
  }

  ClientContext context_;
  grpc::CompletionQueue queue_;
  grpc::GenericStub stub_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  Status status_;
  bool ended_ = false;
};

std::string stream() {
  Stream opened(channel);
  for (int number = 0; number < 100; ++number) opened.exchange(std::to_string(number));
  opened.close();
  return "";
}

std::string deadline() {
  ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + 200ms);
  Status status = call(context, "Wait", "");
  check(status.error_code() == StatusCode::DEADLINE_EXCEEDED, status.error_message());
  return "";
}

void until_waiting(const std::string& count) {
  for (int turn = 0; turn < 200; ++turn) {
    ClientContext context;
    std::string answer;
    call(context, "Waiting", "", &answer);
    if (answer == count) return;
    std::this_thread::sleep_for(50ms);
  }
  throw std::runtime_error("not " + count + " calls");
}

std::string cancelled() {
  ClientContext context;
  Status status;
  std::thread caller([&] { status = call(context, "Wait", ""); });
  until_waiting("1");
  context.TryCancel();
  caller.join();
  until_waiting("0");
  check(status.error_code() == StatusCode::CANCELLED, status.error_message());
  return "";
}

std::string beside(int count, size_t size) {
  Stream opened(channel);
  opened.exchange("before");
  ClientContext context;
  for (int number = 0; number < count; ++number)
    context.AddMetadata("x-" + std::to_string(number), std::string(size, 'v'));
  Status status = call(context, "Echo", "");
  check(status.error_code() != StatusCode::UNAVAILABLE, status.error_message());
  opened.exchange("behind");
  return " " + std::to_string(status.error_code());
}

std::string ping() {
  Stream opened(connect(1000));
  opened.exchange("x");
  std::this_thread::sleep_for(5s);
  opened.exchange("y");
  return "";
}

// Runs a function in many threads; returns what was wrong.
std::set<std::string> in_threads(int count, const std::function<void()>& run) {
  std::set<std::string> wrong;
  std::mutex lock;
  std::vector<std::thread> threads;
  for (int number = 0; number < count; ++number)
    threads.emplace_back([&] {
      try {
        run();
      } catch (const std::exception& error) {
        std::lock_guard<std::mutex> guard(lock);
        wrong.insert(error.what());
      }
    });
  for (auto& thread : threads) thread.join();
  return wrong;
}

std::string call_at_once() {
  auto wrong = in_threads(100, [] { echo(100); });
  check(wrong.empty(), wrong.empty() ? "" : *wrong.begin());
  return "";
}

std::string call_until_it_stops() {
  std::thread ready([] {
    std::this_thread::sleep_for(500ms);
    std::cout << "SIGTERM\tready" << std::endl;
  });
  auto ends = in_threads(20, [] {
    Status status;
    while (status.ok()) {
      ClientContext context;
      status = call(context, "Echo", "x");
    }
    throw std::runtime_error(std::to_string(status.error_code()));
  });
  ready.join();
  const std::string unavailable = std::to_string(StatusCode::UNAVAILABLE);
  for (const auto& each : ends) check(each == unavailable, "code " + each);
  return "";
}

int main(int, char** arguments) {
  address = arguments[1];
  authority = arguments[2];
  channel = connect();
  const std::vector<std::pair<std::string, std::function<std::string()>>> cases = {
      {"unary", [] { return echo(1000); }},
      {"streams", stream},
      {"deadline", deadline},
      {"cancel", cancelled},
      {"4 MB", [] { return echo(4000000); }},
      {"60 MB", [] { return echo(60000000); }},
      {"gzip", [] { return echo(1000000, true); }},
      {"20 kB of metadata", [] { return beside(20, 1000); }},
      {"130 fields", [] { return beside(130, 1); }},
      {"pings", ping},
      {"100 calls", call_at_once},
      {"SIGTERM", call_until_it_stops},
  };
  for (const auto& [name, run] : cases) {
    std::string seen;
    try {
      seen = "ok" + run();
    } catch (const std::exception& error) {
      seen = error.what();
    }
    std::cout << name << "\t" << seen << std::endl;
  }
}
