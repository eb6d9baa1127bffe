// Symbols on real processes: names of addresses; debug files from a debuginfod server, from one that doesn't answer,
// and one so large that reading it takes long: nobody else waits.
#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>

#include "tests/live/probing.hpp"

namespace probed::live {
namespace {

// In no .dynsym: only a symbol table proper has it.
constexpr const char* kHidden = "frame_dummy";

// Serves FILE as the debug file of whatever build-id is asked for; with "hang" it accepts and never answers.
constexpr const char* kServer = R"py(
import http.server, sys, threading
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.0'
    def do_GET(self):
        print('asked ' + self.path, flush=True)
        if sys.argv[1] == 'hang':
            threading.Event().wait()
        body = open(sys.argv[1], 'rb').read()
        self.send_response(200)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args):
        pass
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
server.daemon_threads = True
print('port %d' % server.server_address[1], flush=True)
server.serve_forever()
)py";

// For the life of this object every daemon asks this server, and keeps what it gets in a folder of its own.
class Server {
 public:
  explicit Server(const std::string& file) : process_({"/usr/bin/python3", "-u", "-c", kServer, file}) {
    const std::string line = process_.next_line(Millis{30'000}).value_or("");
    REQUIRE(line.starts_with("port "));
    ::setenv("DEBUGINFOD_URLS", ("http://127.0.0.1:" + line.substr(5)).c_str(), 1);
    ::setenv("DEBUGINFOD_CACHE_PATH", cache_.path().c_str(), 1);
    ::unsetenv("DEBUGINFOD_PROGRESS");
  }
  ~Server() {
    ::unsetenv("DEBUGINFOD_URLS");
    ::unsetenv("DEBUGINFOD_CACHE_PATH");
  }
  bool was_asked() { return process_.next_line(Millis{30'000}).value_or("").starts_with("asked /buildid/"); }

 private:
  TempDir cache_;
  Process process_;
};

// This machine's python3 and a build with libdebuginfod.
bool asks_servers() {
  const bool is_linked = read_file(required_environment("PROBED_BIN")).find("libdebuginfod.so") != std::string::npos;
  return is_linked && ::access("/usr/bin/python3", X_OK) == 0;
}
#define NEEDS_DEBUGINFOD() \
  if (!asks_servers()) SKIP_TEST("needs probed built with libdebuginfod, and python3")

TEST_CASE("the symbols of a stripped program come from a debuginfod server") {
  NEEDS_DEBUGINFOD();
  Server server(target_path("counter"));
  Daemon daemon;
  RpcClient client(daemon.socket());
  Target target("counter-stripped");
  const Json probe = add(client, target.pid(), {std::string("p:h ") + kHidden}).at(0);
  CHECK(server.was_asked());
  CHECK(probe.at("symbol") == std::string(kHidden) + "+0x0");
  remove_all(client, {probe});
}

TEST_CASE("a debug file of another build that a server gives isn't used") {
  NEEDS_DEBUGINFOD();
  Server server(target_path("family"));
  Daemon daemon;
  RpcClient client(daemon.socket());
  Target target("counter-stripped");
  CHECK(reason_of(add_error(client, target.pid(), {kHidden})) == "no-such-symbol");
  CHECK(server.was_asked());
}

TEST_CASE("a server that doesn't answer keeps nobody else waiting, nor the daemon from ending") {
  NEEDS_DEBUGINFOD();
  Server server("hang");
  Daemon daemon;
  RpcClient waiting(daemon.socket()), other(daemon.socket());
  Target stripped("counter-stripped");
  Watched target("family");
  REQUIRE(waiting.send_raw(request_text("probe.add", add_params(stripped.pid(), {kHidden}), 77)));
  REQUIRE(server.was_asked());
  const auto start = Clock::now();
  const auto probes = add(other, target.pid(), {"p:w work"});
  CHECK(target.ask("call 3") == "called 3");
  CHECK(counts_of(other, probes[0]).hits == 3);
  CHECK(Clock::now() - start < scaled(Millis{10'000}));
  CHECK(!waiting.receive_line(Millis{0}));  // it waits for the server still
  CHECK(daemon.stop() == Exit{0, 0});
  CHECK(target.unharmed());
}

TEST_CASE("an argument of type symbol is shown as the name of what is there, else as the address it is") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched target("family");
  const auto probes =
      add(client, target.pid(), {"p:w work here=" PC ":symbol caller=" RETURN_ADDRESS ":symbol none=\\1:symbol"});
  Events events(client);
  CHECK(target.ask("call 2") == "called 2");
  REQUIRE(events.reach(2));
  for (const Json& event : events.all()) {
    const Json& args = event.at("args");
    CHECK(args.at("here") == "work+0x0");
    CHECK(args.at("caller").get<std::string>().find("+0x") != std::string::npos);
    CHECK(args.at("none") == "0x1");
  }
  remove_all(client, probes);
  CHECK(target.unharmed());
}

// ---- large ----------------------------------------------------------------------------------------------------------

// A copy of `program` whose debug file is known by link, has `symbols` symbols more, and is 500 MB long.
std::string with_large_debug_file(const TempDir& dir, const std::string& program, int symbols) {
  const std::string source = dir / "more.s", stripped = dir / "program", debug = dir / "program.debug";
  constexpr const char* kMake = R"py(
import struct, sys
program, out, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
data = bytearray(open(program, 'rb').read())
shoff, = struct.unpack_from('<Q', data, 40)
shnum, = struct.unpack_from('<H', data, 60)
heads = [list(struct.unpack_from('<IIQQQQIIQQ', data, shoff + 64 * i)) for i in range(shnum)]
table = next(i for i, h in enumerate(heads) if h[1] == 2)
strings = heads[table][6]
syms = bytearray(data[heads[table][4]:heads[table][4] + heads[table][5]])
names = bytearray(data[heads[strings][4]:heads[strings][4] + heads[strings][5]])
text = next(h for h in heads if h[1] == 1 and h[2] & 4)
for i in range(count):
    syms += struct.pack('<IBBHQQ', len(names), 0x12, 0, heads.index(text), text[3] + i % max(1, text[5]), 1)
    names += b'generated_symbol_%d\0' % i
for index, blob in ((table, syms), (strings, names)):
    while len(data) % 16: data += b'\0'
    heads[index][4], heads[index][5] = len(data), len(blob)
    data += blob
for i, h in enumerate(heads): struct.pack_into('<IIQQQQIIQQ', data, shoff + 64 * i, *h)
with open(out, 'wb') as file:
    file.write(data)
    file.truncate(500 << 20)
)py";
  REQUIRE(run_command({"/usr/bin/python3", "-c", kMake, program, debug, std::to_string(symbols)}, {}, Millis{120'000})
              .ok());
  REQUIRE(run_command({"strip", "-s", "-o", stripped, program}).ok());
  SpawnOptions there;
  there.directory = dir.path();
  REQUIRE(run_command({"objcopy", "--remove-section", ".note.gnu.build-id", stripped}).ok());
  REQUIRE(run_command({"objcopy", "--add-gnu-debuglink=program.debug", stripped}, there, Millis{60'000}).ok());
  return stripped;
}

TEST_CASE("reading a debug file of 500 MB and two million symbols keeps nobody else waiting") {
  if (::access("/usr/bin/python3", X_OK) != 0) SKIP_TEST("needs python3, to write the debug file");
  TempDir dir;
  const std::string program = with_large_debug_file(dir, target_path("family"), 2'000'000);
  Daemon daemon;
  RpcClient waiting(daemon.socket()), other(daemon.socket());
  Process large({program});
  REQUIRE(large.next_line().value_or("").starts_with("ready"));
  Watched target("family");
  REQUIRE(waiting.send_raw(request_text("probe.add", add_params(large.pid(), {"p:h generated_symbol_1999999"}), 77)));
  const auto start = Clock::now();
  const auto probes = add(other, target.pid(), {"p:w work"});
  const auto took = std::chrono::duration_cast<Millis>(Clock::now() - start);
  const bool first = !waiting.receive_line(Millis{0});
  CHECK(target.ask("call 3") == "called 3");
  CHECK(counts_of(other, probes[0]).hits == 3);
  const auto answer = waiting.receive_line(Millis{60'000});
  const auto all = std::chrono::duration_cast<Millis>(Clock::now() - start);
  REQUIRE(answer);
  MESSAGE("the other client waited " << took.count() << " ms, the large file took " << all.count() << " ms");
  if (all > Millis{1000}) CHECK(first);
  // Its symbols were read: what it says of the place is about one of them.
  const Json reply = parse_json(*answer);
  CHECK(reply.dump().find("generated_symbol") != std::string::npos);
  remove_all(other, probes);
  CHECK(target.unharmed());
}

}  // namespace
}  // namespace probed::live
