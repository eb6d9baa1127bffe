// The Controller over a real tracer. Asio thread, except where said.
//
// Split by subject: controller_targets.cpp (attach, detach, lifecycle), controller_probes.cpp (add, remove, enable,
// list), controller_revival.cpp (gone, pending), controller_waiting.cpp (pending globs), controller_limits.cpp (rates,
// expiry), controller_events.cpp (queue, subscriptions), controller_feeds.cpp (records of jumps),
// controller_keeping.cpp (what outlives this daemon).
#pragma once

#include <type_traits>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include "daemon/base/alone.hpp"
#include "daemon/control/controller.hpp"
#include "daemon/control/kept.hpp"
#include "daemon/control/registry.hpp"
#include "daemon/control/workers.hpp"
#include "daemon/events/hit_queue.hpp"
#include "daemon/events/record_clock.hpp"
#include "daemon/symbols/debuginfod.hpp"
#include "daemon/symbols/module_cache.hpp"
#include "daemon/tracer/tracer.hpp"

namespace probed::control {

class ControllerImpl final : public Controller {
 public:
  // queue_bytes: room for hits on their way from the tracer, a power of two.
  // state_directory: for the tracer's journals; empty: none are kept.
  ControllerImpl(boost::asio::io_context& io, std::size_t queue_bytes, std::string state_directory = {});
  ~ControllerImpl() override;

  // The hits a second of a probe without a rate of its own, as long as it is a breakpoint; 0: any number.
  void set_max_rate(std::uint64_t most) { max_rate_ = most; }
  void set_probe_limits(const ProbeLimits& limits) { probe_limits_ = limits; }

  // Whether the owner of what persists may still trace that process. Without it everybody may.
  using OwnerJudge = std::function<Result<void>(Owner, pid_t)>;
  void set_owner_judge(OwnerJudge judge) { owner_may_trace_ = std::move(judge); }
  // Persistent probes, and targets that stay attached for good, are kept in files of this directory from now on.
  struct Keeping {
    std::string directory;
  };
  void keep_probes(Keeping keeping);
  // Puts back what the daemon before has kept there: every probe is registered when this returns, those that can be are
  // in place when done is called, `limit` later at most.
  void readopt(std::chrono::milliseconds limit, std::function<void()> done);

  // Detaches everything, then calls done; at most `limit` later it is called anyway. No other call after this one.
  void shut_down(std::chrono::milliseconds limit, std::function<void()> done);
  // After that: gives the workers' jobs so long to end. How many don't: this must not be destroyed then.
  std::size_t finish_work(std::chrono::milliseconds patience) { return workers_.stop(patience); }

  void client_connected(Client& client) override;
  void client_gone(ClientId client) override;
  void attach(Client& client, pid_t pid, AttachOptions options, Reply<TargetView> reply) override;
  void detach(pid_t pid, Reply<void> reply) override;
  void resume(pid_t pid, Reply<void> reply) override;
  std::vector<TargetView> targets() const override;
  void add(Client& client, AddRequest request, Reply<Added> reply) override;
  void remove(Client& client, Selector which, Reply<std::vector<ProbeView>> reply) override;
  void set_enabled(Client& client, Selector which, bool enabled, Reply<Changed> reply) override;
  void look(std::optional<pid_t> pid, std::function<void()> done) override;
  std::vector<ProbeView> probes(std::optional<pid_t> pid) const override;
  Result<std::uint64_t> subscribe(Client& client, SubscribeRequest request) override;
  Result<SubscriptionTotals> unsubscribe(Client& client, std::uint64_t subscription) override;
  void set_armed(Client& client, bool armed, Reply<std::vector<Failed>> reply) override;
  void set_optimize(bool enabled, Reply<void> reply) override;
  Status status() const override;
  void functions(Client& client, pid_t pid, std::string pattern, std::size_t limit, Shape<symbols::Function> shape,
                 Reply<std::string> reply) override;
  void variables(Client& client, pid_t pid, std::string location, Shape<dwarf::VisibleVariable> shape,
                 Reply<std::string> reply) override;
  void lines(Client& client, pid_t pid, std::string file, std::size_t limit, Shape<symbols::SourceLine> shape,
             Reply<std::string> reply) override;
  void usdt(Client& client, pid_t pid, std::string pattern, std::size_t limit, Shape<symbols::UsdtProbe> shape,
            Reply<std::string> reply) override;

 private:
  class TracerListener;
  struct Plan;

  // controller_targets.cpp
  Target& target(pid_t pid);
  // Queues an operation on a target; it calls its argument when the next one may start.
  void enqueue(pid_t pid, std::function<void(std::function<void()> next)> operation, ClientId whose = ClientId::none,
               std::function<void()> drop = {});
  void run_next(pid_t pid);
  static Error client_has_gone();
  Result<void> check_still_allowed(ClientId who, pid_t pid) const;
  // The same, and it is of the program that the process still runs what has been read of it.
  Result<void> check_same_program(ClientId who, pid_t pid, const symbols::TargetSymbols& read) const;
  static constexpr std::chrono::seconds kDetachPatience{5};
  // One that is just being detached is waited for.
  void ensure_attached(pid_t pid, tracer::AttachParams params, Reply<void> reply) {
    ensure_attached(pid, params, std::chrono::steady_clock::now() + kDetachPatience, std::move(reply));
  }
  void ensure_attached(pid_t pid, tracer::AttachParams params, std::chrono::steady_clock::time_point until,
                       Reply<void> reply);
  void detach_if_unused(pid_t pid, std::function<void()> done);
  void drop_target(pid_t pid);
  void forget_if_idle(pid_t pid);
  void notify_interested(const Target& target, std::string_view method, const std::string& params);
  void forget_hold(Target& target);
  void forget_denied(Target& target, const std::set<ClientId>& denied);
  void on_process_gone(pid_t root, pid_t pid, std::optional<tracer::WaitStatus> how);
  void on_process_execed(pid_t root, pid_t pid, bool kept, std::string_view comm);
  void on_child_execed(Target& parent, pid_t pid, bool kept, std::string_view comm);
  static std::string children_let_go(const Target& target);
  void on_process_ready(pid_t pid);
  TargetView view(const Target& target) const;
  template <class Pred>
  std::size_t count_probes(Pred pred) const;
  std::size_t probe_count(pid_t pid) const;
  std::size_t probe_count_of_user(uid_t user) const;

  // controller_probes.cpp
  Result<std::vector<lang::Definition>> parse(const AddRequest& request) const;
  void plan_in_pool(std::shared_ptr<Plan> plan);
  void refuse(const Plan& plan, Error why);
  void analyse_first(std::shared_ptr<Plan> plan);
  void take_analysis(const std::shared_ptr<Plan>& plan, std::vector<tracer::SiteCode> code);
  void commit(std::shared_ptr<Plan> plan);
  void describe(Probe& probe, const Plan& plan, const Target& t, PlannedProbe& planned) const;
  Result<void> register_probes(Plan& plan);
  // Whether some argument is shown as a symbol's name.
  static bool shows_symbols(const PlannedProbe& planned);
  static events::EventSchema schema_of(const Probe& probe, const PlannedProbe& planned);
  static tracer::ProgramPtr program_of(const Probe& probe, PlannedProbe& planned);
  // Reads the symbols of every module there is, so that later look-ups are quick. Worker pool.
  static void read_all_symbols(const symbols::TargetSymbols& symbols);
  void follow(Probe& probe, ProbeId leader);
  // What people see: not the further places of a probe, nor a glob whose matches they see.
  static bool is_shown(const Probe& probe) { return number(probe.leader) == 0 && probe.matches == 0; }
  class Names;
  Result<void> check_room(const Plan& plan) const;
  Result<void> check_names(const AddRequest& request, ClientId owner,
                           const std::vector<lang::Definition>& definitions) const;
  std::vector<ProbeId> select(const Client& client, const Selector& which) const;
  void take_out(std::vector<ProbeId> ids, Reply<std::vector<ProbeView>> reply);
  void remove_ids(std::vector<ProbeId> ids, Reply<std::vector<ProbeView>> reply);
  void erase_probe(ProbeId id);
  // By itself, or by the glob that it is a match of.
  template <class Named>
  bool is_named(const Probe& probe, Named named) const {
    if (named(probe)) return true;
    const auto glob = probes_.find(probe.from);
    return glob != probes_.end() && named(glob->second);
  }
  void mark_gone(pid_t pid);
  std::uint64_t places_of(const Probe& probe) const;
  ProbeView view(const Probe& probe) const;
  template <typename T, typename List>
  void look_up(const Client& client, pid_t pid, Shape<T> shape, Reply<std::string> reply, List list);
  const tracer::ProbeProgram& dearest(const Probe& probe) const;
  void put_tier(ProbeView& view, const Probe& probe) const;
  void analyse_code(uid_t user, pid_t pid, std::uint32_t execs, std::shared_ptr<const symbols::TargetSymbols> symbols,
                    std::vector<RemoteAddr> sites);
  void tell_code(pid_t pid, std::uint32_t execs, std::vector<tracer::SiteCode> code);
  void tell_switched(ClientId by, const std::vector<ProbeId>& ids, bool enabled);

  // controller_keeping.cpp
  struct KeptFile {
    std::string path;
    std::size_t written = 0;       // hash of what stands there; 0: nothing
    std::string failure{};         // why nothing could be written; empty: it could, or hasn't been tried
    std::set<ProbeId> left_out{};  // what can't stand there
    std::uint64_t attempts = 0;
    std::optional<std::chrono::steady_clock::time_point> proven_at;  // when putting it back has done no harm
  };
  void keep(pid_t pid);
  void keep_all();
  void keep(const KeptTarget& target);
  void note_unkept(ProbeView& view) const;
  void forget_kept(pid_t pid);
  std::map<pid_t, KeptTarget> kept_targets(std::optional<pid_t> pid) const;
  KeptProbe kept(const Probe& probe) const;
  void look_at_kept();
  void look_at_kept_later(std::chrono::steady_clock::duration last_took);
  void adopt(FoundKept found, std::function<void()> done);
  void put_back(std::shared_ptr<const FoundKept> found, std::function<void()> done);
  std::optional<Error> why_not_adoptable(const KeptTarget& kept) const;
  void enter(const KeptTarget& kept, std::uint64_t last_known);
  void refuse(const FoundKept& found, const std::string& why);
  // Of that target's probes that are still to be put back.
  void give_up_awaited(pid_t pid, const Error& why, bool for_good, const std::function<bool(const Probe&)>& of_them);
  void settle(const KeptTarget& kept, std::uint64_t last_known, const std::vector<Failed>& failed);
  void note_watched(Probe& probe) const;
  void note_place(Probe& probe, const tracer::SitePlan& plan) const;

  // controller_limits.cpp
  void on_limit_reached(std::vector<ProbeId> probes);
  void look_at_limits_at(std::chrono::steady_clock::time_point at);
  void look_at_limits();
  std::uint64_t most_of(const Probe& probe) const;
  std::uint64_t passes_of(const Probe& probe) const;
  bool is_too_fast(Probe& probe, std::uint64_t most, std::chrono::steady_clock::time_point now) const;
  void disable(std::vector<ProbeId> ids, std::string reason);
  void tell_disabled(const std::vector<ProbeId>& ids, std::string_view reason);

  // controller_revival.cpp
  struct Revival;
  std::vector<Failed> failed(const std::vector<tracer::NotArmed>& not_armed) const;
  void on_code_gone(pid_t root, const std::vector<ProbeId>& ids, const char* why);
  void take_along(const Probe& lost);
  void look_for_pending(pid_t pid);
  void on_libraries_changed(pid_t root, std::uint64_t ticket);
  struct Item;
  struct Step;
  Item item_of(const Probe& leader) const;
  Probe& add_place(const Item& item);
  void forget_watch_if_unneeded(pid_t pid);
  std::optional<Error> why_not_revivable(const Probe& probe) const;
  void revive_all(ClientId who, const std::vector<ProbeId>& ids, std::function<void(std::vector<Failed>)> done);
  void revive_awaited(pid_t pid, std::function<void(std::vector<Failed>)> done);
  void revive(std::shared_ptr<Revival> revival);
  struct PlannedAgain;
  uid_t user_of(const Revival& revival) const;
  Result<PlannedAgain> plan_again(const Revival& revival);
  void place(std::shared_ptr<Revival> revival);
  void place_one(const Revival& revival, Item& item, std::size_t index, Step& step);
  void place_step(tracer::Engine& engine, const std::shared_ptr<Revival>& revival, const Step& step);
  bool place_halves(const std::shared_ptr<Revival>& revival, const Step& together);
  void finish(const std::shared_ptr<Revival>& revival);
  void tell_unplaced(Probe& probe, const Error& why);
  void notify_owners(const std::vector<ProbeId>& ids, std::string_view method, const char* message = nullptr);

  // controller_waiting.cpp
  void note_taken(Item& item, const Probe& glob) const;
  void place_matches(Revival& revival, Item& item, std::vector<Step>& steps);
  void finish_matches(const Revival& revival, Item& item, std::vector<ProbeId>& ownerless,
                      std::vector<RemoteAddr>& sites);
  void tell_added(const Probe& glob, const std::vector<ProbeId>& added, const std::vector<Skipped>& skipped);
  void set_enabled_as(const Probe& glob, const std::vector<ProbeId>& matches);
  std::vector<ProbeId> matches_of(ProbeId glob) const;
  void forget_match(const Probe& match, std::vector<ProbeId>& emptied);

  // controller_events.cpp
  void wait_for_hits();
  void poll_hits();
  std::size_t take_hits(std::size_t limit, std::uint64_t end);
  std::size_t drain(std::size_t limit);
  void drain_all();
  // Leaves the records of threads that the tracer is still to be asked about.
  void drain_known();
  void report_queue_losses();
  void report_queue_losses_in_time();
  // What clients may trace, for as long as one thing is done: asking costs a look at many files of /proc.
  using Sight = std::map<std::pair<ClientId, pid_t>, bool>;
  bool matches(const Subscription& subscription, const Probe& probe, Sight& sight) const;
  void link(Probe& probe, Sight& sight);
  void listen(Subscription& subscription, Probe& probe);
  void unlink(const Subscription& subscription);
  void tell_streaming(std::vector<ProbeId> ids);
  void offer(Probe& probe, const events::RecordHeader& header, std::span<const std::byte> packed);
  void flush_touched();
  void note_end(const Probe& probe);
  void tell_ends();
  std::size_t hits_per_turn() const;

  // controller_feeds.cpp
  FeedState* find_feed(const events::FeedPtr& feed);
  void on_taps_added(const events::FeedPtr& feed, const std::vector<tracer::Listener::Tap>& taps, pid_t pid,
                     std::uint64_t ticket);
  void on_taps_unused(const events::FeedPtr& feed, std::vector<std::uint32_t> indices, pid_t pid);
  void on_feed_closed(const events::FeedPtr& feed);
  std::size_t drain_feeds(std::size_t limit, std::uint64_t until);
  void drain_feeds_before(const events::RecordHeader& header);
  std::size_t drain_feed(FeedState& state, std::size_t limit, std::uint64_t until = ~0ull);
  void take_record(FeedState& state, const events::ChannelRecord& record);
  void take_known(FeedState& state, const events::ChannelRecord& record, pid_t tid);
  std::span<const std::byte> take_arguments(const tracer::ProbeProgram& program, const events::ChannelRecord& record,
                                            events::RecordHeader& header);
  void take_unknown(FeedState& state);
  void give_up_unknown(FeedState& state);
  const FeedState::Thread& thread_in(FeedState& state, pid_t pid, pid_t tid);
  void close_tap(FeedState& state, std::uint32_t index);
  struct Counts {
    std::uint64_t hits = 0, missed = 0, filtered = 0;
  };
  Counts counts_of(const Probe& probe) const;
  std::uint64_t missed_of(const Probe& probe) const;
  void watch_feeds();

  // Any thread: runs f on the Asio thread.
  template <class F>
  void post(F f) {
    if (alone()) return;  // nobody runs it any more
    boost::asio::post(io_, std::move(f));
  }

  // Runs make() on a worker, and done() here with the Result that it gives. A job that takes too long is answered for;
  // what it gives later is dropped. Nothing that make() changes may be seen from here before done().
  template <class Make, class Done>
  void at_work(uid_t user, Work kind, Make make, Done done) {
    using Made = std::invoke_result_t<Make>;
    const auto once = std::make_shared<std::optional<Done>>(std::move(done));
    const auto finish = [this, once](Made made) {
      post([once, made = std::move(made)]() mutable {
        if (auto last = std::exchange(*once, std::nullopt)) (*last)(std::move(made));
      });
    };
    auto run = [this, make = std::move(make), finish] {
      try {
        Made made = make();
        modules_.trim();  // they grow while they are read
        finish(Workers::out_of_time()     ? Made(took_too_long())
               : Workers::out_of_memory() ? Made(takes_too_much())
                                          : std::move(made));
      } catch (const std::bad_alloc&) {
        finish(Made(no_memory()));
      }
    };
    workers_.post({user, kind, std::move(run), [finish] { finish(took_too_long()); }});
  }
  Result<void> check_descriptors(uid_t user, pid_t pid) const;
  static Error took_too_long();
  static Error takes_too_much();
  static Error no_memory();

  boost::asio::io_context& io_;
  events::HitQueue queue_;
  boost::asio::posix::stream_descriptor queue_event_;
  boost::asio::steady_timer poll_timer_, limits_timer_;
  std::optional<std::chrono::steady_clock::time_point> limits_at_;  // when it goes off
  symbols::Debuginfod debuginfod_;
  symbols::ModuleCache modules_;
  // Several: a file that takes seconds to read, or a server that doesn't answer, is one client's business.
  Workers workers_;
  std::unique_ptr<TracerListener> listener_;
  std::unique_ptr<tracer::Tracer> tracer_;

  std::map<ClientId, Client*> clients_;
  std::map<pid_t, Target> targets_;
  std::map<ProbeId, Probe> probes_;
  std::map<std::uint64_t, Subscription> subscriptions_;
  std::vector<std::unique_ptr<FeedState>> feeds_;
  bool feeds_record_ = false;  // some probe's records are wanted
  bool asleep_ = false;        // nothing is polled
  unsigned idle_turns_ = 0;    // in a row, without a hit
  events::RecordClock clock_;
  std::chrono::steady_clock::time_point now_{};  // of the drain
  std::uint64_t last_hit_ = 0;                   // of a breakpoint that was taken from the queue: when, ns
  std::array<std::byte, events::kMaxArgumentBytes> packed_{};
  events::UnpackScratch scratch_{};
  // Since the last flush: who has been offered events, and whose events they were.
  std::vector<Subscription*> touched_;
  std::vector<Probe*> offered_;
  std::size_t widest_audience_ = 0;  // of a probe, about: how many listen to it
  std::uint64_t longest_pause_ = 0;  // ns
  std::uint32_t last_probe_ = 0;
  std::uint64_t last_subscription_ = 0;
  std::uint64_t max_rate_ = 0;
  ProbeLimits probe_limits_;
  bool armed_ = true;
  bool optimize_ = true;
  // What subscriptions are still to be told: those of their probes that have ended.
  struct Ends {
    std::vector<ProbeId> removed;
    std::string first;  // GROUP/NAME
    pid_t pid = 0;      // the process that has ended, or runs another program; 0: none
  };
  std::map<std::uint64_t, Ends> ends_;
  OwnerJudge owner_may_trace_ = [](Owner, pid_t) { return Result<void>(); };
  Status totals_;  // counters of probes that are no more
  events::EventEncoder encoder_;
  std::chrono::steady_clock::time_point next_loss_report_{};
  std::unique_ptr<boost::asio::steady_timer> shutdown_timer_;
  std::optional<Keeping> keeping_;
  std::map<pid_t, KeptFile> kept_;
  std::unique_ptr<boost::asio::steady_timer> keep_timer_, adoption_timer_;
};

}  // namespace probed::control
