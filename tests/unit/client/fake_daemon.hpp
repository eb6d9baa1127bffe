// A daemon that traces nothing: it speaks the protocol over one connection and does what the probe definitions tell it.
//
// A definition is "NAME WORD...": events=N (delivered when enabled), lost=N (hits beyond them, reported as missed),
// json=TEXT (the event's args), exit (then the target exits), limit (then the limit was reached), die (then the daemon
// goes), refuse (probe.add fails at the word's column), silent (probe.enable is never answered), disarmed (the daemon's
// global switch is off), skip (probe.add skips what a glob matches), killed (exit, by signal 15), interrupt (the client
// gets SIGINT before its target.resume is answered).
#pragma once

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "proto/base/fd.hpp"
#include "proto/framing.hpp"
#include "proto/jsonrpc.hpp"

namespace probed::test {

inline bool send_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const auto sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

class FakeDaemon {
 public:
  // journal: where the methods called are written, one a line; may be empty.
  explicit FakeDaemon(std::string journal = {}) : journal_(std::move(journal)) {}

  // Serves this connection until it ends.
  void serve(int fd) {
    fd_ = fd;
    proto::FrameReader reader;
    char buffer[4096];
    for (ssize_t got; !dead_ && (got = ::read(fd, buffer, sizeof(buffer))) > 0;) {
      reader.feed({buffer, static_cast<std::size_t>(got)});
      for (;;) {
        const auto message = reader.next();
        if (!message || !*message) break;
        answer(**message);
      }
    }
    write_journal("disconnected");
  }

 private:
  struct Probe {
    std::uint64_t id = 0, hits = 0;
    std::string name, definition, args = "{}";
    std::uint64_t events = 0, lost = 0;
    std::vector<std::string> then;
  };

  void write_journal(std::string_view line) {
    if (!journal_.empty()) std::ofstream(journal_, std::ios::app) << line << std::endl;
  }

  void send(const std::string& line) { send_all(fd_, line + "\n"); }
  void reply(const std::string& id, const std::string& result) { send(proto::make_response(id, result)); }

  void answer(std::string_view text) {
    const auto message = proto::parse_message(text);
    const auto* request = std::get_if<proto::Request>(&message.items.front());
    if (!request) return;
    write_journal(request->method);
    if (request->params.contains("pid")) pid_ = request->params["pid"].get<std::int64_t>();
    dispatch(*request);
  }

  void dispatch(const proto::Request& request) {
    const auto& [id, notify, method, params] = request;
    if (method == "probe.add") return add(request);
    if (method == "probe.enable") return enable(request);
    if (method == "target.attach") {
      reply(id, fmt::format("{{\"pid\":{}}}", pid_));
      return send(proto::make_notification("target.ready", fmt::format("{{\"pid\":{}}}", pid_)));
    }
    if (method == "target.resume") {
      if (said("interrupt")) ::kill(peer(), SIGINT);
      reply(id, "{}");
      return perform_rest();
    }
    if (method == "events.subscribe") return reply(id, "{\"subscription\":7}");
    if (method == "events.unsubscribe") return reply(id, "{\"delivered\":0,\"missed\":0}");
    if (method == "target.list") return reply(id, fmt::format("{{\"targets\":[{{\"pid\":{},\"probes\":0}}]}}", pid_));
    if (method == "symbols.variables")
      return send(proto::make_error(id, Error{Reason::unsupported, "variables are not in this version", "", {}}));
    reply(id, views());
  }

  void add(const proto::Request& request) {
    for (const auto& spec : request.params["probes"]) {
      Probe probe;
      probe.id = probes_.size() + 3;
      probe.definition = spec["definition"].get<std::string>();
      std::istringstream words(probe.definition);
      words >> probe.name;
      for (std::string word; words >> word;) take_word(probe, word);
      if (const auto at = probe.definition.find("refuse"); at != std::string::npos) {
        Error error{Reason::bad_definition, "a word that is no argument", "leave it out", at};
        return send(proto::make_error(request.id, error));
      }
      probes_.push_back(probe);
    }
    const bool skips = said("skip");
    auto result = views();
    result.pop_back();
    const char* skipped =
        R"({"symbol":"__restore_rt","address":"0x2000","reason":"blacklisted","message":"it is the trampoline"})";
    reply(request.id, fmt::format("{},\"skipped\":[{}]}}", result, skips ? skipped : ""));
  }

  bool said(std::string_view word) const {
    for (const auto& probe : probes_)
      if (std::find(probe.then.begin(), probe.then.end(), word) != probe.then.end()) return true;
    return false;
  }

  static void take_word(Probe& probe, const std::string& word) {
    const auto equals = word.find('=');
    const auto value = equals == std::string::npos ? "" : word.substr(equals + 1);
    if (word.starts_with("events="))
      probe.events = std::stoull(value);
    else if (word.starts_with("lost="))
      probe.lost = std::stoull(value);
    else if (word.starts_with("json="))
      probe.args = value;
    else
      probe.then.push_back(word);
  }

  std::string views() const {
    std::string out = "{\"probes\":[";
    for (const auto& p : probes_)
      out += fmt::format(R"({}{{"id":{},"name":"probes/{}","kind":"p","pid":{},"address":"0x1000","symbol":"f+0x0",)"
                         R"("module":"m","state":"enabled","tier":"boosted","args":[{{"name":"s","type":"string"}}],)"
                         R"("armed":{},"hits":{},"missed":0,"filtered":0}})",
                         p.id == 3 ? "" : ",", p.id, p.name, pid_, !said("disarmed"), p.hits);
    return out + "]}";
  }

  std::string event(const Probe& p, std::uint64_t number) const {
    return fmt::format(R"({{"probe":"probes/{}","id":{},"pid":{},"tid":{},"comm":"fake","cpu":1,"time":{},)"
                       R"("ip":"0x1000","symbol":"f+0x0","args":{}}})",
                       p.name, p.id, pid_, pid_, 5'000'000'000 + number, p.args);
  }

  void enable(const proto::Request& request) {
    for (auto& probe : probes_) {
      for (const auto& word : probe.then)
        if (word == "silent") return;
      emit(probe);
    }
    reply(request.id, views());
    if (!held()) perform_rest();
  }

  // Batches as a daemon makes them: not one event a message, not all in one.
  void emit(Probe& probe) {
    constexpr std::uint64_t kBatch = 1000;
    for (std::uint64_t from = 0; from < probe.events || (from == 0 && probe.lost > 0); from += kBatch) {
      std::string batch;
      for (auto n = from; n < std::min(from + kBatch, probe.events); ++n)
        batch += (n == from ? "" : ",") + event(probe, n);
      const auto missed = from == 0 ? probe.lost : 0;
      send(proto::make_notification("events",
                                    fmt::format(R"({{"subscription":7,"events":[{}],"missed":{}}})", batch, missed)));
    }
    probe.hits = probe.events + probe.lost;
  }

  bool held() const { return said("held"); }

  pid_t peer() const {
    ucred credentials{};
    socklen_t size = sizeof credentials;
    return ::getsockopt(fd_, SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0 ? credentials.pid : 0;
  }

  void perform_rest() {
    for (const auto& probe : probes_)
      for (const auto& word : probe.then) perform(word, probe);
  }

  void perform(const std::string& word, const Probe& probe) {
    if (word == "exit") send(proto::make_notification("target.exited", fmt::format("{{\"pid\":{},\"code\":0}}", pid_)));
    if (word == "killed")
      send(proto::make_notification("target.exited", fmt::format("{{\"pid\":{},\"signal\":15}}", pid_)));
    if (word == "limit")
      send(proto::make_notification("probe.disabled", fmt::format("{{\"ids\":[{}],\"reason\":\"limit\"}}", probe.id)));
    if (word == "die") {
      dead_ = true;
      ::shutdown(fd_, SHUT_RDWR);
    }
  }

  std::string journal_;
  int fd_ = -1;
  std::int64_t pid_ = 0;
  bool dead_ = false;
  std::vector<Probe> probes_;
};

}  // namespace probed::test
