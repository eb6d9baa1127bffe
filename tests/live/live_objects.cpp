// Chains of pointers through a server's own structures: redis' clients, their arguments and the texts in them. Once on
// a small program with redis' very layouts, which says itself what they hold; once on redis-server, where there is one
// with debug information.
#include <doctest/doctest.h>

#include <cstdlib>

#include "tests/live/servers.hpp"
#include "tests/live/telling.hpp"

namespace probed::live {
namespace {

// The definitions of a chain: the text, the bit-fields beside its pointer, and its length, in front of it.
std::string object(const std::string& path, const std::string& as) {
  return " " + as + "_type=" + path + "->type " + as + "_encoding=" + path + "->encoding " + as + "_lru=" + path +
         "->lru " + as + "_refcount=" + path + "->refcount " + as + "_ptr=" + path + "->ptr:string " + as + "_len=-3(" +
         path + "->ptr):u8 " + as + "_alloc=-2(" + path + "->ptr):u8";
}

void check_object(const Json& args, const std::string& as, const Json& truth) {
  for (const auto& [name, value] : truth.items()) {
    CAPTURE(as);
    CAPTURE(name);
    CHECK(args.at(as + "_" + name) == value);
  }
}

TEST_CASE("redis' layouts: client, arguments, objects with bit-fields, and the texts they point to, along one path") {
  for (const bool optimize : {false, true}) {
    CAPTURE(optimize);
    Daemon daemon;
    RpcClient client(daemon.socket());
    if (!optimize) client.call("daemon.optimize", {{"enabled", false}});
    TellingTarget user("objects");
    std::string definition = "p:cmd process_command id=c->id argc=c->argc";
    for (int i = 0; i < 3; ++i) {
      const std::string n = std::to_string(i);
      definition += object("c->argv[" + n + "]", "a" + n);
    }
    const auto probes =
        add(client, user.pid(), {definition, "p:set set_key flags key=*key db_id=db->id" + object("val", "val")});
    for (const Json& probe : probes) CHECK(!probe.contains("notes"));
    Events events(client);
    constexpr std::size_t kRounds = 30;
    std::vector<Json> truths;
    for (std::size_t i = 0; i < kRounds; ++i) truths.push_back(user.truth("call " + std::to_string(i)));
    REQUIRE(events.reach(2 * kRounds));
    const auto commands = events.of(probes[0]), sets = events.of(probes[1]);
    REQUIRE(commands.size() == kRounds);
    REQUIRE(sets.size() == kRounds);
    for (std::size_t i = 0; i < kRounds; ++i) {
      const Json& args = commands[i].at("args");
      const Json& argv = truths[i].at("argv");
      CHECK(args.at("id") == truths[i].at("id"));
      CHECK(args.at("argc") == truths[i].at("argc"));
      for (std::size_t a = 0; a < 3; ++a) check_object(args, "a" + std::to_string(a), argv.at(a));
      const Json& set = sets[i].at("args");
      check_object(set, "val", argv.at(2));
      CHECK(set.at("flags") == 4);
      CHECK(set.at("db_id") == 11);
      for (const char* name : {"type", "encoding", "lru", "refcount"})
        CHECK(set.at("key").at(name) == argv.at(1).at(name));
    }
    remove_all(client, probes);
    CHECK(user.unharmed());
    CHECK(user.ends_well());
  }
}

// "KEY:VALUE" of DEBUG OBJECT's answer.
std::string said(const std::string& answer, const std::string& key) {
  const std::size_t at = answer.find(" " + key + ":");
  if (at == std::string::npos) return "";
  const std::size_t from = at + key.size() + 2;
  return answer.substr(from, answer.find(' ', from) - from);
}

TEST_CASE("redis-server: what a client asks for, and the object it sets, are shown as redis itself says they are") {
  const char* program = std::getenv("REDIS_WITH_DEBUG");
  if (program == nullptr)
    SKIP_TEST("REDIS_WITH_DEBUG names no redis-server with debug information (tests/suites/redis)");
  Daemon daemon;
  RpcClient client(daemon.socket());
  RedisServer redis(program, {"--enable-debug-command", "yes"});
  const TargetState before = state_of(redis.pid());
  const auto probes = add(client, redis.pid(),
                          {"p:cmd redis-server:processCommand id=c->id argc=c->argc" + object("c->argv[0]", "word"),
                           "p:set redis-server:setKey key=key->ptr:string at=val" + object("val", "val")});
  for (const Json& probe : probes) CHECK_MESSAGE(!probe.contains("notes"), probe.dump());
  Events events(client);
  CHECK(redis.command({"SET", "greeting", "hello, objects"}) == "+OK");
  const std::string object_said = redis.command({"DEBUG", "OBJECT", "greeting"});
  const std::string id = redis.command({"CLIENT", "ID"});  // each command is a client's of its own
  REQUIRE(events.reach(4));
  const auto commands = events.of(probes[0]), sets = events.of(probes[1]);
  REQUIRE(commands.size() == 3);
  REQUIRE(sets.size() == 1);
  const Json& set = sets[0].at("args");
  CHECK(set.at("key") == "greeting");
  CHECK(set.at("val_ptr") == "hello, objects");
  CHECK(set.at("val_len") == 14);
  CHECK_MESSAGE(object_said.find("Value at:" + set.at("at").get<std::string>() + " ") != std::string::npos,
                object_said);
  CHECK(said(object_said, "refcount") == std::to_string(set.at("val_refcount").get<int>()));
  CHECK(said(object_said, "lru") == std::to_string(set.at("val_lru").get<int>()));
  CHECK(said(object_said, "encoding") == "embstr");
  CHECK(set.at("val_encoding") == 8);  // OBJ_ENCODING_EMBSTR
  const char* words[] = {"SET", "DEBUG", "CLIENT"};
  const int counts[] = {3, 3, 2};
  for (std::size_t i = 0; i < 3; ++i) {
    const Json& args = commands[i].at("args");
    CHECK(args.at("word_ptr") == words[i]);
    CHECK(args.at("word_len") == std::string(words[i]).size());
    CHECK(args.at("argc") == counts[i]);
  }
  CHECK(id == ":" + std::to_string(commands[2].at("args").at("id").get<int>()));
  remove_all(client, probes);
  CHECK(left_unharmed(redis.pid(), before, PageCopies::may_stay));
  CHECK(redis.healthy());
}

}  // namespace
}  // namespace probed::live
