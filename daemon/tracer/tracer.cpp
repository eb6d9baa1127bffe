#include "daemon/tracer/tracer.hpp"

#include <pthread.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <optional>
#include <string_view>
#include <utility>

#include "daemon/base/alone.hpp"
#include "daemon/base/fault_in.hpp"
#include "daemon/tracer/kernel/apart.hpp"

namespace probed::tracer {
namespace {

using namespace std::chrono_literals;

constexpr auto kIdleAfter = 100ms;  // without a stop: the tracer gives up its place on the tracees' CPU
constexpr auto kTick = 10ms;
constexpr auto kMostBefore = 10ms;
// Between two looks at commands and deadlines at most: some hundred microseconds.
constexpr unsigned kStopsBetween = 64;
constexpr auto kMostAlone = 12s;       // the next daemon, and the guard, wait for longer
constexpr unsigned kAloneSeconds = 3;  // between two rounds of the loop, behind the daemon's death

using Deadline = std::optional<Waiter::Clock::time_point>;

Deadline earlier(Deadline a, Deadline b) { return a && b ? std::min(*a, *b) : a ? a : b; }

}  // namespace

Tracer::Tracer(HitSink sink, Listener& listener) {
  std::promise<void> bound;
  const pid_t consumer = gettid();
  thread_ = std::thread([&, sink, consumer, this] {
    pthread_setname_np(pthread_self(), "tracer");
    run_apart(Waiter::kWakeSignal, [&] {
      waiter_.bind_to_this_thread();
      urgency_.bind_to_this_thread();
      bound.set_value();
      run(listener, sink, consumer);
    });
  });
  bound.get_future().wait();
  urgency_.begin();
}

Tracer::~Tracer() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  waiter_.wake();
  thread_.join();
}

void Tracer::post(std::function<void(Engine&)> command) {
  {
    const std::lock_guard lock(mutex_);
    mailbox_.push_back(std::move(command));
  }
  waiter_.wake();
}

bool Tracer::run_commands(Engine& engine) {
  if (daemon_dies()) urgency_.hurry_to_the_end();
  std::vector<std::function<void(Engine&)>> commands;
  {
    const auto lock = lock_unless_alone(mutex_);
    if (stopping_ || alone()) return false;
    commands.swap(mailbox_);
  }
  urgency_.note_activity();
  if (!commands.empty()) let_interrupted_go_on(engine);
  for (auto& command : commands) command(engine);
  return true;
}

// A command may take long: 50,000 probes come or go at once. Threads that the optimiser has just asked to stop don't
// stand still meanwhile; they stop as soon as they are told to, if they have a processor.
void Tracer::let_interrupted_go_on(Engine& engine) {
  constexpr timespec kBlink{0, 20'000};
  const auto until = Waiter::Clock::now() + kMostBefore;
  while (engine.awaits_interrupted() && Waiter::Clock::now() < until) {
    if (const auto stop = waiter_.poll())
      engine.handle(*stop);
    else
      nanosleep(&kBlink, nullptr);
  }
}

// The daemon has died, and nobody else is left in this memory. Its clients are to learn of that now, and the next
// daemon is to have the socket, which are open as long as they are here.
void close_sockets() {
  struct stat file {};
  std::error_code error;
  std::vector<int> open;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error))
    open.push_back(std::atoi(entry.path().filename().c_str()));
  for (const int fd : open)
    if (fd > STDERR_FILENO && ::fstat(fd, &file) == 0 && S_ISSOCK(file.st_mode)) ::close(fd);
}

// The log's lock may be a dead thread's.
void tell(std::string_view line) {
  [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, line.data(), line.size());
}

// While there are stops a tick goes off every now and then, and what is due by time is looked at then: not at every
// hit. A deadline that a stop has set is so seen at the next tick, one that a command has set at once.
template <class Proceed>
void Tracer::loop(Engine& engine, Proceed proceed) {
  bool ticking = false;
  Waiter::Clock::time_point last_busy{};
  std::uint64_t stops = 0, stops_seen = 0;
  const auto deal_with = [&](const Stop& stop) {
    engine.handle(stop);
    ++stops;
    if (!std::exchange(ticking, true)) waiter_.wake();
  };
  while (proceed()) {
    engine.check_deadlines();
    tell_of_what_was_done();
    const auto now = Waiter::Clock::now();
    if (std::exchange(stops_seen, stops) != stops) last_busy = now;
    ticking = now - last_busy < kIdleAfter;
    if (!ticking) engine.cpu_follower().idle();
    waiter_.set_alarm(earlier(engine.next_deadline(), ticking ? Deadline(now + kTick) : std::nullopt));
    for (unsigned n = 0; n < kStopsBetween; ++n) {
      const auto stop = waiter_.poll();
      if (!stop) break;
      deal_with(*stop);
    }
    while (!waiter_.take_wake())
      if (const auto stop = waiter_.wait()) deal_with(*stop);
  }
}

void Tracer::run(Listener& listener, HitSink sink, pid_t consumer) {
  Engine engine(waiter_, sink, listener);
  engine.cpu_follower().set_consumer(consumer);
  loop(engine, [&] { return run_commands(engine); });
  if (alone()) let_all_go(engine);
}

// What is left when this has returned, its guard puts right.
void Tracer::let_all_go(Engine& engine) {
  spdlog::default_logger_raw()->set_level(spdlog::level::off);
  close_sockets();
  if (engine.idle()) return;
  tell("probed: warning: this daemon was killed: letting go what it has traced\n");
  const auto until = Waiter::Clock::now() + kMostAlone;
  bool done = false;
  engine.detach_all([&] {
    done = true;
    waiter_.wake();
  });
  loop(engine, [&] {
    give_seconds(kAloneSeconds);
    return !done && Waiter::Clock::now() < until;
  });
  if (!done) tell("probed: error: some threads of it could not be stopped: they are left to the kernel\n");
}

}  // namespace probed::tracer
