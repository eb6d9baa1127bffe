// Debug information that lies in files beside the program - split (.dwo), packaged (.dwp), shared by dwz, stripped off
// (.debug) - and is cut short, has other bits, or is another build's: the daemon goes on, answers in time, says why
// when it knows nothing, and the program is left as it was.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "tests/live/probing.hpp"
#include "tests/live/servers.hpp"

namespace probed::live {
namespace {

namespace fs = std::filesystem;

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

// tests/targets/variables.c, built so that its debug information is in FILE beside it; `other`: FILE of another build.
struct Build {
  std::string program, file, other;
};

class Builder {
 public:
  explicit Builder(std::string kind) : kind_(std::move(kind)) {}
  // false: this machine lacks a tool.
  bool run() {
    made_.file = kind_ == "dwp"     ? "prog.dwp"
                 : kind_ == "dwz"   ? "prog.shared"
                 : kind_ == "debug" ? "prog.debug"
                                    : "prog.dwo";
    if (!build("", made_.program, whole_) || !build("-DOTHER=1 -O1", made_.other, other_)) return false;
    fs::remove_all(dir_ / "build");  // from here on only what lies beside the program is found
    return true;
  }
  const std::string& kind() const { return kind_; }
  const std::string& whole() const { return whole_; }  // the file's bytes
  const std::string& other() const { return other_; }
  // The program in a folder of its own, with such a file beside it. A copy: nothing is known of it yet.
  std::string place(const std::string& bytes) {
    const std::string folder = dir_ / ("run" + std::to_string(++count_));
    fs::create_directory(folder);
    write_bytes(folder + "/prog", made_.program);
    fs::permissions(folder + "/prog", fs::perms::owner_all);
    write_bytes(folder + "/" + made_.file, bytes);
    return folder + "/prog";
  }

  void mend(const std::string& path) { write_bytes(fs::path(path).replace_filename(made_.file), whole_); }

 private:
  bool build(const std::string& options, std::string& program, std::string& file) {
    const std::string folder = dir_ / "build";
    fs::create_directory(folder);
    const std::string source = required_environment("SOURCE_DIR") + "/tests/targets/variables.c";
    const std::string cc = "cc -w -O2 -D_GNU_SOURCE " + options + " ";
    const std::string split = cc + "-g -gsplit-dwarf ", old = cc + "-gdwarf-4 ";
    std::string script = "cd " + folder + " && ";
    if (kind_ == "dwo") script += split + "-c -o prog.o " + source + " && cc -o prog prog.o";
    if (kind_ == "dwp")
      script += old + "-gsplit-dwarf -c -o prog.o " + source + " && cc -o prog prog.o && dwp -e prog -o prog.dwp";
    if (kind_ == "dwz")
      script += old + "-o prog " + source + " && " + old + "-DSECOND -o second " + source +
                " && dwz -m prog.shared -M prog.shared prog second";
    if (kind_ == "debug")
      script += cc + "-g -o prog " + source +
                " && objcopy --only-keep-debug prog prog.debug && objcopy -g --add-gnu-debuglink=prog.debug prog";
    if (!run_command({"sh", "-c", script}).ok()) return false;
    program = bytes_of(folder + "/prog");
    file = bytes_of(folder + "/" + made_.file);
    return !program.empty() && !file.empty();
  }

  const std::string kind_;
  TempDir dir_;
  Build made_;
  std::string whole_, other_;
  int count_ = 0;
};

struct Answer {
  bool armed = false;
  std::string why;  // the refusal's message and hint, or the probe's notes
  Json args;        // of one event
};

// One program, asked about and traced; its own words and its end are those of an untraced one.
Answer ask(Daemon& daemon, RpcClient& client, const std::string& path) {
  Process program({path});
  REQUIRE(program.next_line().value_or("").starts_with("ready "));
  const CommandResult vars = probectl(daemon, {"vars", "-p", std::to_string(program.pid()), "take"});
  CHECK((vars.ok() || !vars.err.empty()));
  Answer answer;
  const Json error = add_error(client, program.pid(), {"p:t take $args"});
  if (error.is_null()) {
    answer.armed = true;
    const Json probe = list_probes(client, program.pid()).at(0);
    answer.why = probe.value("notes", Json::array()).dump();
    Events events(client, {{"pid", program.pid()}});
    program.send("take 5\n");
    CHECK(parse_json(program.next_line().value_or("")).value("number", 0) == 5);
    CHECK(events.reach(1));
    if (!events.all().empty()) answer.args = events.all()[0].at("args");
    events.end();
    remove_all(client, {probe});
  } else {
    CHECK(!reason_of(error).empty());
    answer.why = error.at("message").get<std::string>() + " " + hint_of(error);
    CHECK(answer.why.size() > 20);
  }
  program.send("quit\n");
  CHECK(program.next_line().value_or("") == "result ok");
  CHECK(program.wait() == Exit{0, 0});
  return answer;
}

bool is_right(const Answer& answer) {
  return answer.armed && answer.args.value("number", Json()) == 5 && answer.args.value("text", Json()) == "some text" &&
         answer.args.value("eighth", Json()) == -8;
}

#define NEEDS_COMPILER() \
  if (find_program("cc").empty()) SKIP_TEST("needs a C compiler, as cc")

const char* const kKinds[] = {"dwo", "dwp", "dwz", "debug"};

TEST_CASE(
    "debug information beside the program is understood while it is whole, so that what follows means something") {
  NEEDS_COMPILER();
  for (const char* kind : kKinds) {
    CAPTURE(std::string(kind));
    Builder builder(kind);
    REQUIRE(builder.run());
    Daemon daemon;
    RpcClient client(daemon.socket());
    const Answer answer = ask(daemon, client, builder.place(builder.whole()));
    CHECK_MESSAGE(is_right(answer), answer.why << answer.args.dump());
  }
}

TEST_CASE("of debug files that are missing, empty, cut short or another build's it is said what is wrong") {
  NEEDS_COMPILER();
  for (const char* kind : kKinds) {
    CAPTURE(std::string(kind));
    Builder builder(kind);
    REQUIRE(builder.run());
    Daemon daemon;
    RpcClient client(daemon.socket());
    const std::string& whole = builder.whole();
    const std::vector<std::string> damaged{"",
                                           "no ELF file at all",
                                           whole.substr(0, 40),
                                           whole.substr(0, 64),
                                           whole.substr(0, whole.size() / 2),
                                           builder.other()};
    for (std::size_t i = 0; i < damaged.size(); ++i) {
      CAPTURE(i);
      const Answer answer = ask(daemon, client, builder.place(damaged[i]));
      CHECK(!is_right(answer));
      CHECK_MESSAGE(answer.why.find("damaged, or of another build") != std::string::npos, answer.why);
    }
    const std::string path = builder.place(whole);
    for (const char* ending : {".dwo", ".dwp", ".shared", ".debug"}) fs::remove(path + ending);
    const Answer answer = ask(daemon, client, path);
    // What is stripped off is looked for, not known to exist.
    const char* said = builder.kind() == "debug" ? "has none" : "can't be found";
    CHECK_MESSAGE(answer.why.find(said) != std::string::npos, answer.why);
  }
}

TEST_CASE("why a program's lines aren't known is said, too, when its debug file is another build's") {
  NEEDS_COMPILER();
  Builder builder("debug");
  REQUIRE(builder.run());
  Daemon daemon;
  RpcClient client(daemon.socket());
  Process program({builder.place(builder.other())});
  REQUIRE(program.next_line().value_or("").starts_with("ready "));
  const Json error = add_error(client, program.pid(), {"p:t variables.c:90"});
  const std::string why = error.value("message", "") + " " + hint_of(error);
  CHECK_MESSAGE(why.find("damaged, or of another build") != std::string::npos, why);
  program.send("quit\n");
  CHECK(program.wait() == Exit{0, 0});
}

TEST_CASE("a debug file that wasn't there, and is put there, is found by the same daemon") {
  NEEDS_COMPILER();
  for (const char* kind : kKinds) {
    CAPTURE(std::string(kind));
    Builder builder(kind);
    REQUIRE(builder.run());
    Daemon daemon;
    RpcClient client(daemon.socket());
    const std::string path = builder.place(builder.other());
    CHECK(!is_right(ask(daemon, client, path)));
    builder.mend(path);
    CHECK(eventually([&] { return is_right(ask(daemon, client, path)); }));
  }
}

TEST_CASE("debug files with other bits, or cut anywhere, are answered about in time, and do nobody harm") {
  NEEDS_COMPILER();
  constexpr int kRounds = 40;
  std::mt19937_64 random(11);
  for (const char* kind : kKinds) {
    CAPTURE(std::string(kind));
    Builder builder(kind);
    REQUIRE(builder.run());
    Daemon daemon;
    RpcClient client(daemon.socket());
    for (int i = 0; i < kRounds; ++i) {
      CAPTURE(i);
      std::string bytes = builder.whole();
      if (i % 4 == 0) {
        bytes.resize(random() % bytes.size());
      } else {
        for (std::uint64_t n = 1 + random() % 40; n > 0; --n)
          bytes[64 + random() % (bytes.size() - 64)] = static_cast<char>(random());
      }
      ask(daemon, client, builder.place(bytes));
    }
    CHECK(client.call("daemon.status", Json::object()).at("probes") == 0);
    CHECK(daemon.stop() == Exit{0, 0});
  }
}

// Looked at to its end it would take minutes and more.
TEST_CASE("debug information that is made to keep its reader busy is answered in time") {
  NEEDS_COMPILER();
  Daemon daemon;
  RpcClient client(daemon.socket());
  Target target("liar");
  const auto refusal = [&](const std::string& argument) {
    return add_error(client, target.pid(), {"p:e liar " + argument}).dump();
  };
  CHECK(refusal("$args").find("50001 parameters") != std::string::npos);
  CHECK(refusal("last.nosuch").find("no member") != std::string::npos);
  const auto probes = add(client, target.pid(), {"p:e liar last"});
  CHECK(probes.at(0).at("notes").dump().find("it has no members that can be shown") != std::string::npos);
  Events events(client);
  target.go();
  CHECK(events.reach(100));
  CHECK(events.all().at(0).at("args") == Json({{"last", nullptr}}));
  CHECK(target.finish().ok());
}

}  // namespace
}  // namespace probed::live
