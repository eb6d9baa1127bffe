// D1 to D5: the shape of the whole thing, seen from outside on a running daemon.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "tests/live/probing.hpp"

namespace probed::live {
namespace {

namespace fs = std::filesystem;

TEST_CASE(
    "D1: the tracer is a process outside of the target, attached by ptrace only while there is something to trace") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched target("family");
  CHECK(tracer_of(target.pid()) == 0);
  const std::vector<Json> probes = add(client, target.pid(), {"work"});
  CHECK(tracer_of(target.pid()) == daemon.pid());
  // No descriptor, no thread, no library of ours is in there; but for the descriptor that a jump's memory is made by,
  // for some microseconds, while the program's threads stand still.
  CHECK(eventually([&] { return state_of(target.pid()).fds == target.before.fds; }));
  CHECK(read_file("/proc/" + std::to_string(target.pid()) + "/status").find("\nThreads:\t1\n") != std::string::npos);
  CHECK(read_file("/proc/" + std::to_string(target.pid()) + "/maps").find("probed") == std::string::npos);
  remove_all(client, probes);
  CHECK(tracer_of(target.pid()) == 0);
  CHECK(target.unharmed());
}

TEST_CASE("D2: the daemon runs on Boost.Asio, decodes x86 with Zydis and speaks by nlohmann's JSON") {
  Daemon daemon;
  const std::string maps = read_file("/proc/" + std::to_string(daemon.pid()) + "/maps");
  const std::string program = read_file(required_environment("PROBED_BIN"));
  const bool has_zydis =
      maps.find("/libZydis") != std::string::npos || program.find("ZydisDecoder") != std::string::npos;
  CHECK(has_zydis == kHasZydis);
  CHECK(program.find("5boost4asio") != std::string::npos);  // mangled names of types that are thrown or virtual
  CHECK(program.find("8nlohmann") != std::string::npos);
}

TEST_CASE("D3: the top level of the tree has the folders of the design") {
  const fs::path top = required_environment("SOURCE_DIR");
  for (const char* name :
       {"meson.build", "daemon", "client", "proto", "arch/x86_64", "arch/aarch64", "tests", "packaging"}) {
    CAPTURE(std::string(name));
    CHECK(fs::exists(top / name));
  }
}

TEST_CASE("D4: hits in a private copy of the text, executed in injected memory, arrive as JSON over a Unix socket") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched target("family"), other("family");
  // An instruction that reads memory: it can't be emulated from registers, so its copy must be executed.
  Json place;
  for (unsigned offset = 0; offset < 64 && place.is_null(); ++offset) {
    Json answer = client.request("probe.add", add_params(target.pid(), {"work+" + hex(offset)}));
    if (!answer.contains("result")) continue;
    const std::vector<Json> added = answer.at("result").at("probes");
    if (!new_executable_mappings(target.before, state_of(target.pid())).empty())
      place = added.at(0);
    else
      remove_all(client, added);
  }
  REQUIRE(place.is_object());
  CHECK(state_of(target.pid()).private_text_kb > 0);
  CHECK(other.harm() == "");
  Events events(client);
  CHECK(target.ask("call 2") == "called 2");
  CHECK(events.reach(2));
  events.end();
  CHECK(events.all()[0].at("ip") == place.at("address"));
  remove_all(client, {place});
  CHECK(target.unharmed());
}

TEST_CASE("D4: the socket is for its owner alone unless told otherwise, and goes with the daemon") {
  std::string path;
  {
    Daemon daemon;
    path = daemon.socket();
    CHECK((fs::status(path).permissions() & fs::perms::all) == (fs::perms::owner_read | fs::perms::owner_write));
    CHECK(daemon.stop() == Exit{0, 0});
    CHECK_FALSE(fs::exists(path));
  }
  Daemon open({"--socket-mode", "0660"});
  CHECK((fs::status(open.socket()).permissions() & fs::perms::group_write) != fs::perms::none);
}

TEST_CASE("D5: probectl and an IDE use the same daemon at the same time and see each other's persistent probes") {
  Daemon daemon;
  RpcClient ide(daemon.socket());
  Watched target("family");
  const std::string pid = std::to_string(target.pid());
  CHECK(probectl(daemon, {"add", "-p", pid, "p:shell work"}).ok());
  add(ide, target.pid(), {"p:ide work"});
  CHECK(list_probes(ide).size() == 2);
  const CommandResult list = probectl(daemon, {"list"});
  CHECK(list.out.find("probes/shell") != std::string::npos);
  CHECK(list.out.find("probes/ide") != std::string::npos);
  Events events(ide);
  CHECK(target.ask("call 3") == "called 3");
  events.end();
  CHECK(events.all().size() == 6);
  CHECK(probectl(daemon, {"remove", "--all"}).ok());
  CHECK(target.unharmed());
}

// sd_notify(3): a service of type "notify" tells its manager when it is ready and when it stops.
TEST_CASE("D5: under a service manager the daemon says when it is ready, and ends by SIGTERM with success") {
  TempDir dir;
  const UniqueFd manager(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = dir / "notify";
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  REQUIRE(::bind(manager.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  SpawnOptions options;
  options.environment = {"NOTIFY_SOCKET=" + path};
  Process daemon({required_environment("PROBED_BIN"), "--socket", dir / "s"}, options);
  std::string said;
  const auto heard = [&](const std::string& what) {
    return eventually([&] {
      char text[512];
      const ssize_t got = ::recv(manager.get(), text, sizeof text, MSG_DONTWAIT);
      if (got > 0) said.append(text, static_cast<std::size_t>(got)) += '\n';
      return said.find(what) != std::string::npos;
    });
  };
  CHECK(heard("READY=1"));
  RpcClient client(dir / "s");
  CHECK(client.call("daemon.status").at("targets") == 0);
  daemon.signal(SIGTERM);
  CHECK(heard("STOPPING=1"));
  CHECK(daemon.wait() == Exit{0, 0});
}

// systemd.socket(5): the manager listens, the service inherits descriptor 3 once somebody has connected.
TEST_CASE("D5: a socket that the service manager holds serves clients from before the start, and outlives the daemon") {
  TempDir dir;
  const std::string path = dir / "s";
  const UniqueFd listening(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  REQUIRE(::bind(listening.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(::listen(listening.get(), 8) == 0);
  SpawnOptions options;
  options.pass_fds = {listening.get()};
  const std::vector<std::string> command = {"/bin/sh", "-c", "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\"",
                                            required_environment("PROBED_BIN")};
  for (int start = 0; start < 2; ++start) {
    RpcClient early(path);
    Process daemon(command, options);
    CHECK(early.call("daemon.status").at("targets") == 0);
    daemon.signal(SIGTERM);
    CHECK(daemon.wait() == Exit{0, 0});
    CHECK(fs::exists(path));
  }
}

TEST_CASE("no child is left when everything was torn down") { CHECK(joined(children_left()) == ""); }

}  // namespace
}  // namespace probed::live
