// Calls and their returns, matched by where the return address is.
#include "daemon/tracer/calls/return_stacks.hpp"

#include <doctest/doctest.h>

namespace probed::tracer {
namespace {

struct Stacks {
  ReturnStacks calls;
  std::shared_ptr<ReturnProbe> first = std::make_shared<ReturnProbe>(), second = std::make_shared<ReturnProbe>();

  // On the one stack from 0x1000 to 0x2000.
  static StackPlace at(std::uint64_t slot) { return {0, slot, 0x1000}; }
  static StackPlace elsewhere(std::uint64_t slot) { return {0, slot, slot}; }
};

}  // namespace

TEST_CASE_FIXTURE(Stacks, "a return belongs to the call that was entered at its place") {
  Activation* outer = calls.enter(first, at(0x1800), 0x10);
  REQUIRE(outer);
  outer->time = 1;
  Activation* inner = calls.enter(first, at(0x1700), 0x11);
  REQUIRE(inner);
  inner->time = 2;
  CHECK(calls.active(*first) == 2);
  CHECK(calls.leave(*first, at(0x1700), 0x11)->time == 2);
  CHECK(calls.leave(*first, at(0x1800), 0x10)->time == 1);
  CHECK(calls.leave(*first, at(0x1800), 0x10) == nullptr);
  CHECK(calls.active(*first) == 0);
  CHECK(first->abandoned == 0);
}

TEST_CASE_FIXTURE(Stacks, "what is left below is abandoned, on the same stack only") {
  calls.enter(first, at(0x1800), 0x10);
  calls.enter(first, at(0x1700), 0x10);
  calls.enter(second, at(0x1600), 0x10);
  calls.enter(first, elsewhere(0x900), 0x10);
  REQUIRE(calls.leave(*first, at(0x1800), 0x10));
  CHECK(first->abandoned == 1);
  CHECK(second->abandoned == 1);
  CHECK(calls.active(*first) == 1);
  // It was a coroutine's: taken back.
  REQUIRE(calls.leave(*second, at(0x1600), 0x10));
  CHECK(second->abandoned == 0);
  REQUIRE(calls.leave(*first, elsewhere(0x900), 0x10));
}

TEST_CASE_FIXTURE(Stacks, "what a thread has kept takes no later call of another thread's place") {
  const auto kept = [&](std::uint64_t time) {
    Activation call;
    call.probe = first;
    call.tid = 1;
    call.return_address = 0x10;
    call.time = time;
    return call;
  };
  Activation* other = calls.enter(first, at(0x1800), 0x10);
  REQUIRE(other);
  other->tid = 2;
  other->time = 100;
  calls.take_over(0x1800, kept(50), false);
  CHECK(first->abandoned == 1);
  CHECK(calls.active(*first) == 1);
  CHECK(calls.leave(*first, at(0x1800), 0x10)->time == 100);
  other = calls.enter(first, at(0x1800), 0x10);
  REQUIRE(other);
  other->tid = 2;
  other->time = 100;
  calls.take_over(0x1800, kept(150), false);
  CHECK(first->abandoned == 2);
  CHECK(calls.leave(*first, at(0x1800), 0x10)->time == 150);
  CHECK(calls.active(*first) == 0);
}

TEST_CASE_FIXTURE(Stacks, "a call at the place of another one abandons that, unless it is the same again") {
  calls.enter(first, at(0x1800), 0x10);
  CHECK(calls.enter(first, at(0x1800), 0x10) != nullptr);
  CHECK(first->abandoned == 1);
  second->loops_to_entry = true;
  calls.enter(second, at(0x1800), 0x10);
  CHECK(calls.enter(second, at(0x1800), 0x10) == nullptr);
  CHECK(second->abandoned == 0);
  CHECK(calls.enter(second, at(0x1800), 0x20) != nullptr);
  CHECK(second->abandoned == 1);
  CHECK(calls.active(*second) == 1);
}

TEST_CASE_FIXTURE(Stacks, "an exit that would return elsewhere isn't the call's") {
  calls.enter(first, at(0x1800), 0x10);
  CHECK(calls.leave(*first, at(0x1800), 0x99) == nullptr);
  CHECK(first->abandoned == 1);
  CHECK(calls.leave(*first, at(0x1800), 0x10) == nullptr);
}

TEST_CASE_FIXTURE(Stacks, "tail calls: two functions share a place") {
  calls.enter(first, at(0x1800), 0x10)->time = 1;
  CHECK(calls.leave(*first, at(0x1800), 0x10)->time == 1);
  calls.enter(second, at(0x1800), 0x10)->time = 2;
  CHECK(calls.leave(*second, at(0x1800), 0x10)->time == 2);
}

TEST_CASE_FIXTURE(Stacks, "the end of a thread, of the program, and of the probe") {
  calls.enter(first, at(0x1800), 0x10)->tid = 1;
  calls.enter(first, elsewhere(0x900), 0x10)->tid = 2;
  calls.thread_ended(1);
  CHECK(first->abandoned == 1);
  ReturnStacks childs(calls);
  CHECK(childs.leave(*first, elsewhere(0x900), 0x10));
  calls.program_ended();
  CHECK(first->abandoned == 2);
  calls.enter(first, at(0x1800), 0x10);
  calls.forget(*first);
  CHECK(calls.leave(*first, at(0x1800), 0x10) == nullptr);
  CHECK(first->abandoned == 2);
}

TEST_CASE_FIXTURE(Stacks, "threads whose stacks lie in one mapping leave each other's calls alone") {
  const auto of_thread = [](pid_t tid, std::uint64_t slot) { return StackPlace{0, slot, 0x1000, tid}; };
  calls.enter(first, of_thread(1, 0x1400), 0x10)->tid = 1;
  calls.enter(first, of_thread(2, 0x1800), 0x10)->tid = 2;
  calls.enter(first, of_thread(2, 0x1700), 0x10)->tid = 2;
  CHECK(calls.leave(*first, of_thread(2, 0x1800), 0x10));
  CHECK(first->abandoned == 1);
  CHECK(calls.active(*first) == 1);
  // In a forked child all of them are its only thread's.
  ReturnStacks childs(calls);
  CHECK(childs.leave(*first, of_thread(3, 0x1900), 0x10) == nullptr);
  CHECK(first->abandoned == 2);
  CHECK(calls.leave(*first, of_thread(1, 0x1400), 0x10));
}

TEST_CASE_FIXTURE(Stacks, "a return says of all that was entered at its place that it is over") {
  calls.enter(first, at(0x1800), 0x10);  // left by longjmp
  calls.enter(second, at(0x1800), 0x10);
  CHECK(calls.leave(*second, at(0x1800), 0x10));
  CHECK(first->abandoned == 1);
  CHECK(calls.active(*first) == 0);
  // Two probes of one function: the other's return is about to be seen.
  calls.enter(first, at(0x1700), 0x10);
  calls.enter(second, at(0x1700), 0x10);
  CHECK(calls.leave(*first, at(0x1700), 0x10));
  CHECK(calls.leave(*second, at(0x1700), 0x10));
  CHECK(first->abandoned + second->abandoned == 1);
}

TEST_CASE_FIXTURE(Stacks, "rejected calls are known, and count nowhere") {
  calls.reject(*calls.enter(first, at(0x1800), 0x10), Activation::Kind::filtered);
  CHECK(calls.active(*first) == 0);
  CHECK(calls.leave(*first, at(0x1800), 0x10)->kind == Activation::Kind::filtered);
  calls.reject(*calls.enter(first, at(0x1800), 0x10), Activation::Kind::missed);
  calls.enter(first, at(0x1900), 0x10);
  CHECK(first->abandoned == 0);
  CHECK(calls.active(*first) == 1);
}

}  // namespace probed::tracer
