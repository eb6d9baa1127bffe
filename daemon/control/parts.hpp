// All parts of the controller (part.hpp), and what they share.
//
//   attachments.hpp  targets: attached, detached, their operations in order
//   access.hpp       whether a client may still do what it was once allowed to
//   placement.hpp    probes on their way in
//   changes.hpp      probes removed, enabled, disabled; the switches for all
//   reviver.hpp      probes that wait for code; waiting.cpp: globs that do
//   limits.hpp       probes that end by time, number or rate
//   stream.hpp       hits and records on their way to subscriptions; feeds.cpp: those that jumps have recorded
//   keeper.hpp       what outlives this daemon
//   views.hpp        what clients are shown of probes
//   lookups.hpp      questions about symbols
//   pool.hpp         hands what would keep the Asio thread to workers (workers.hpp)
#pragma once

#include <type_traits>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include "daemon/base/alone.hpp"
#include "daemon/control/access.hpp"
#include "daemon/control/attachments.hpp"
#include "daemon/control/changes.hpp"
#include "daemon/control/keeper.hpp"
#include "daemon/control/limits.hpp"
#include "daemon/control/lookups.hpp"
#include "daemon/control/placement.hpp"
#include "daemon/control/pool.hpp"
#include "daemon/control/reviver.hpp"
#include "daemon/control/stream.hpp"
#include "daemon/control/tracer_listener.hpp"
#include "daemon/control/views.hpp"
#include "daemon/symbols/debuginfod.hpp"
#include "daemon/symbols/module_cache.hpp"
#include "daemon/tracer/tracer.hpp"

namespace probed::control {

struct Parts {
  // queue_bytes: room for hits on their way from the tracer, a power of two.
  Parts(boost::asio::io_context& on, std::size_t queue_bytes);

  boost::asio::io_context& io;
  Registry registry;
  symbols::Debuginfod debuginfod;
  symbols::ModuleCache modules;
  // Several: a file that takes seconds to read, or a server that doesn't answer, is one client's business.
  Workers workers;
  events::EventEncoder encoder;
  std::optional<Keeping> keeping;  // nullopt: nothing outlives this daemon
  std::unique_ptr<boost::asio::steady_timer> shutdown_timer;

  Attachments attachments{*this};
  Access access{*this};
  Pool pool{*this};
  Placement placement{*this};
  Changes changes{*this};
  Views views{*this};
  Lookups lookups{*this};
  Reviver reviver{*this};
  Limits limits{*this};
  Keeper keeper{*this};
  Stream stream;

  TracerListener listener{*this};
  std::unique_ptr<tracer::Tracer> tracer;

  // Any thread: runs f on the Asio thread.
  template <class F>
  void post(F f) {
    if (alone()) return;  // nobody runs it any more
    boost::asio::post(io, std::move(f));
  }
};

inline Part::Part(Parts& parts) : parts_(parts), registry_(parts.registry) {}

template <class F>
void Part::post(F f) {
  parts_.post(std::move(f));
}

template <class Make, class Done>
void Part::at_work(uid_t user, Work kind, Make make, Done done) {
  parts_.pool.at_work(user, kind, std::move(make), std::move(done));
}

template <class Make, class Done>
void Pool::at_work(uid_t user, Work kind, Make make, Done done) {
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
      parts_.modules.trim();  // they grow while they are read
      finish(Workers::out_of_time()     ? Made(took_too_long())
             : Workers::out_of_memory() ? Made(takes_too_much())
                                        : std::move(made));
    } catch (const std::bad_alloc&) {
      finish(Made(no_memory()));
    }
  };
  parts_.workers.post({user, kind, std::move(run), [finish] { finish(took_too_long()); }});
}

}  // namespace probed::control
