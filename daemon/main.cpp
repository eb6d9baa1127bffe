// probed: wiring only.
#include <malloc.h>
#include <signal.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <new>
#include <optional>
#include <thread>
#include <utility>  // before Asio

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <systemd/sd-daemon.h>

#include "daemon/api/listener.hpp"
#include "daemon/api/server.hpp"
#include "daemon/base/fault_in.hpp"
#include "daemon/base/fetchers.hpp"
#include "daemon/base/last_words.hpp"
#include "daemon/base/momentary.hpp"
#include "daemon/base/own_limits.hpp"
#include "daemon/control/controller_impl.hpp"
#include "daemon/guard.hpp"
#include "daemon/options.hpp"
#include "daemon/tracer/kernel/interrupted_calls.hpp"
#include "daemon/tracer/kernel/wait.hpp"
#include "daemon/tracer/recovery/left_behind.hpp"
#include "daemon/tracer/recovery/recover.hpp"
#include "proto/base/fd.hpp"

namespace probed {
namespace {

using namespace std::chrono_literals;
constexpr auto kShutdownLimit = 10s;
constexpr auto kFarewellLimit = 2s;  // for clients to read the events that were made before the end
constexpr auto kWorkPatience = 2s;   // for look-ups under way, at the end
constexpr auto kEndPatience = 15s;   // for the tracer's thread, which has let everything go
constexpr auto kReadoptLimit = 10s;  // after which clients are served, whatever is in place by then
constexpr auto kStartPatience = 2s;  // for targets of a killed daemon that another tracer holds

// Should a thread of ours wait for something that never comes: by now nobody depends on this process any more.
void end_anyway_after(std::chrono::seconds patience) {
  std::thread([patience] {
    std::this_thread::sleep_for(patience);
    spdlog::error("not all threads have ended: leaving without them");
    ::_exit(0);
  }).detach();
}

void set_up_log(const std::string& level) {
  // To stderr, systemd style: the journal adds the time. Where each stop is logged its microseconds are wanted, too.
  auto log = spdlog::stderr_logger_mt("probed");
  log->set_level(spdlog::level::from_str(level));
  log->set_pattern(log->level() == spdlog::level::trace ? "probed: %l: %H:%M:%S.%f %v" : "probed: %l: %v");
  spdlog::set_default_logger(std::move(log));
}

// Blocks of this size and more are given back as soon as they are freed, whatever stands behind them in the heap: what
// waits for clients (OutboxLimits::batch_size and some more each time), debug information. Otherwise a daemon that some
// clients were behind of stays as large as it was then. Not the 64 KiB into which files are read all the time: 16 page
// faults each. mallopt(3); setting it keeps the limit from rising by itself.
void give_memory_back() { ::mallopt(M_MMAP_THRESHOLD, (64 << 10) + 128); }

// systemd makes it for the service (RuntimeDirectory=); without systemd, nobody else does. /run is root's.
Result<void> make_default_directory(const Options& options) {
  if (options.socket != kDefaultSocket || geteuid() != 0) return {};
  const std::string directory = std::filesystem::path(kDefaultSocket).parent_path();
  if (::mkdir(directory.c_str(), 0755) != 0)
    return errno == EEXIST ? Result<void>() : cannot("make", directory, errno, "choose another --socket");
  ::chmod(directory.c_str(), 0755);  // whatever the umask
  return {};
}

// Before anything is made on disk: there may be no such group.
Result<api::ListenOptions> listen_options(const Options& options) {
  api::ListenOptions listen{options.socket, options.socket_mode, std::nullopt};
  if (options.socket_group) {
    auto group = api::find_group(*options.socket_group);
    if (!group) return std::move(group).error();
    listen.group = *group;
  }
  return listen;
}

int fail(const Error& error) {
  spdlog::error("{}{}", error.message, error.hint.empty() ? "" : " (" + error.hint + ")");
  return 1;
}

// The default state directory is one that there may be no room for.
bool may_do_without(const Options& options, const Error& error) {
  return options.state_dir.empty() && !options.keep_probes && error.reason != StateDirectory::kRefused;
}

// When everything is in place: whoever is told may send a signal next.
void announce(const Options& options, const std::string& where) {
  spdlog::info("listening on {}", where);
  sd_notify(0, "READY=1");
  if (options.ready_fd < 0) return;
  [[maybe_unused]] const ssize_t n = ::write(options.ready_fd, "\n", 1);
  ::close(options.ready_fd);
}

// Should something end the guard (the OOM killer, somebody's kill), or should there be no room for one, another one is
// started.
class GuardKeeper {
 public:
  // guard: the first one, which may not have been there to be had.
  GuardKeeper(boost::asio::io_context& io, UniqueFd guard, std::string state_directory, std::string log_level)
      : state_directory_(std::move(state_directory)), log_level_(std::move(log_level)), pipe_(io), pause_(io) {
    watch(std::move(guard));
  }

 private:
  static constexpr auto kLeast = std::chrono::seconds(10);  // between two guards

  void watch(UniqueFd guard) {
    boost::system::error_code error;
    if (guard) pipe_.assign(guard.get(), error);
    if (error) spdlog::warn("the guard can't be watched: {}", error.message());
    if (!guard || error) return start_after(kLeast);
    guard.release();
    began_ = std::chrono::steady_clock::now();
    await_end();
  }
  // Nobody reads of the pipe any more: it is in error.
  void await_end() {
    pipe_.async_wait(boost::asio::posix::stream_descriptor::wait_error,
                     [this](const boost::system::error_code& failed) {
                       if (failed) return;
                       if (!hung_up(pipe_.native_handle())) return await_end();
                       replace();
                     });
  }
  void replace() {
    spdlog::warn("the guard has ended: another one takes its place");
    boost::system::error_code ignored;
    pipe_.close(ignored);
    const auto lived = std::chrono::steady_clock::now() - began_;
    start_after(lived > kLeast ? std::chrono::seconds(0) : kLeast);
  }
  void start_after(std::chrono::seconds pause) {
    pause_.expires_after(pause);
    pause_.async_wait([this](const boost::system::error_code& cancelled) {
      if (!cancelled) watch(start_guard(state_directory_, log_level_));
    });
  }

  std::string state_directory_, log_level_;
  boost::asio::posix::stream_descriptor pipe_;
  boost::asio::steady_timer pause_;
  std::chrono::steady_clock::time_point began_{};
};

// Without it nothing is wrong but what it traces: whatever is sandboxed itself (kernel/ptrace.c,
// check_ptrace_options()).
void warn_of_seccomp() {
  if (tracer::under_seccomp(::getpid()))
    spdlog::warn(
        "this daemon runs under a seccomp filter (its container's, or its systemd unit's): the kernel doesn't let it "
        "suspend those of its targets, and most probes in sandboxed processes will be refused. What installs one is "
        "told in man probed, PERMISSIONS");
}

// Where this daemon works: what it listens on, and its state directory, locked.
struct Place {
  api::Listener listener;
  std::string where;  // the socket, for people
  std::optional<StateDirectory> state;
};

Result<Place> take_place(const Options& options) {
  auto inherited = api::Listener::from_systemd();
  if (!inherited) return std::move(inherited).error();
  const auto listen = listen_options(options);
  if (!*inherited && !listen) return listen.error();
  if (!*inherited)
    if (auto made = make_default_directory(options); !made) return std::move(made).error();
  auto state = StateDirectory::open(state_directory(options));
  if (!state && !may_do_without(options, state.error())) return std::move(state).error();
  auto listener = *inherited ? Result<api::Listener>(std::move(**inherited)) : api::Listener::at(*listen);
  if (!listener && state) state->unmake();
  if (!listener) return std::move(listener).error();
  if (state)
    if (auto locked = state->lock(); !locked) state = std::move(locked).error();
  if (!state && !may_do_without(options, state.error())) return std::move(state).error();
  if (!state) spdlog::warn("{}: should this daemon be killed, its probes stay behind", state.error().message);
  Place place{std::move(listener).value(), *inherited ? "the socket that systemd passed" : options.socket, {}};
  if (state) place.state = std::move(state).value();
  return place;
}

// What killed daemons have left, in this place and in those that are known.
void put_right(const Place& place, const Options& options) {
  if (place.state) tracer::recover_all(place.state->path(), kStartPatience);
  tracer::recover_left_behind();
  if (place.state && !options.keep_probes) control::drop_kept(place.state->path());
}

api::ServerOptions server_options(const Options& options) {
  api::ServerOptions server;
  server.max_sessions = options.max_clients;
  server.max_user_sessions = options.max_user_clients;
  server.user_events = options.max_user_events;
  server.log = [](std::string_view line) { spdlog::info("{}", line); };
  return server;
}

// From the first client to the end.
class Service {
 public:
  Service(const Options& options, Place place)
      : options_(options),
        where_(std::move(place.where)),
        state_(std::move(place.state)),
        controller_(io_, options.queue_bytes, state_ ? state_->path() : ""),
        server_(io_, controller_, std::move(place.listener), server_options(options)),
        signals_(io_, SIGTERM, SIGINT, SIGHUP),
        lifetime_(io_) {
    controller_.set_max_rate(options.max_rate);
    controller_.set_probe_limits({options.max_probes, options.max_user_probes});
    controller_.set_owner_judge([authorizer = api::Authorizer()](control::Owner owner, pid_t pid) {
      return authorizer.may_still_trace(owner.user, owner.group, pid);
    });
  }

  // guard: of the state directory, if there is one. An exit status.
  int run(UniqueFd guard) {
    if (state_) guard_keeper_.emplace(io_, std::move(guard), state_->path(), options_.log_level);
    signals_.async_wait([this](const boost::system::error_code& error, int signal) {
      if (!error) stop(strsignal(signal));
    });
    watch_lifetime();
    if (options_.keep_probes) {
      controller_.keep_probes({state_->path()});
      controller_.readopt(kReadoptLimit, [this] { begin(); });
    } else {
      begin();
    }
    try {
      io_.run();
    } catch (const std::bad_alloc&) {
      // What was under way is half done. The tracer lets everything go, as when this process is killed.
      spdlog::critical("probed can't go on: there is no memory left (ulimit -v? MemoryMax=?)");
      ::_exit(1);
    }
    tidy();
    // Everything is let go and put away: what doesn't come back from the kernel is no reason to stay.
    if (const std::size_t stuck = controller_.finish_work(kWorkPatience); stuck != 0) {
      spdlog::error("{} look-ups of symbols don't come back: one of the files they read is never read to its end",
                    stuck);
      ::_exit(0);
    }
    end_anyway_after(kEndPatience);
    return 0;
  }

 private:
  void begin() {
    if (stopping_) return;
    server_.start();
    announce(options_, where_);
  }
  void watch_lifetime() {
    if (options_.lifetime_fd < 0) return;
    lifetime_.assign(options_.lifetime_fd);
    lifetime_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                         [this](const boost::system::error_code& error) {
                           if (!error) stop("the process this daemon was started for has ended");
                         });
  }
  void stop(const char* why) {
    if (std::exchange(stopping_, true)) return;
    spdlog::info("{}: detaching every target", why);
    sd_notify(0, "STOPPING=1");
    // First: what clients that go now had in targets goes with all the rest.
    controller_.shut_down(kShutdownLimit, [this, why = std::string(why)] {
      server_.say_farewell(why, kFarewellLimit, [this] { io_.stop(); });
    });
    server_.close_door();
  }
  void tidy() {
    if (state_ && options_.state_dir.empty()) state_->remove();
    if (!options_.remove_directory) return;
    std::error_code not_empty;
    const auto directory = std::filesystem::path(options_.socket).parent_path();
    std::filesystem::remove(directory, not_empty);
    std::filesystem::remove(directory.parent_path(), not_empty);  // the last one's (base/private_places.hpp)
  }

  const Options& options_;
  std::string where_;
  std::optional<StateDirectory> state_;
  boost::asio::io_context io_{1};
  std::optional<GuardKeeper> guard_keeper_;
  control::ControllerImpl controller_;
  api::Server server_;
  boost::asio::signal_set signals_;
  boost::asio::posix::stream_descriptor lifetime_;
  bool stopping_ = false;
};

int run(const Options& options) {
  tracer::Waiter::block_signals();
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // ulimit -f: the call fails then (write(2), EFBIG), as on a full disk
  if (auto enough = check_own_limits(); !enough) return fail(enough.error());
  give_memory_back();
  warn_of_seccomp();
  PresentPages::want_fetchers();
  Momentary::keep_some();
  auto place = take_place(options);
  if (!place) return fail(place.error());
  put_right(*place, options);
  UniqueFd guard = place->state ? start_guard(place->state->path(), options.log_level) : UniqueFd();
  try {
    Service service(options, std::move(place).value());
    return service.run(std::move(guard));
  } catch (const boost::system::system_error& error) {  // of Asio, mostly at the start: it needs descriptors of its own
    spdlog::critical("probed can't go on: {} (out of descriptors: ulimit -n? of memory: ulimit -v?)", error.what());
    return 1;
  }
}

}  // namespace
}  // namespace probed

int main(int argc, char** argv) {
  probed::fill_standard_descriptors();
  int status = 0;
  const auto options = probed::parse_options(argc, argv, status);
  if (!options) return status;
  probed::set_up_log(options->log_level);
  probed::keep_last_words();
  probed::raise_own_limits();
  if (options->fetchers_fd >= 0) return probed::fetchers::run(options->fetchers_fd);
  if (options->guard_fd >= 0) return probed::run_guard(options->guard_fd, options->guard_of, options->state_dir);
  if (options->recover) return probed::recover_by_hand(probed::state_directory(*options));
  return probed::run(*options);
}
