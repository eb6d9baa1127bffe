// What the sub-commands that ask and print have in common. Main thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "client/connection.hpp"
#include "client/probectl/options.hpp"

namespace probed::client {

// {"pid":N} when -p was given, else {}.
std::string pid_params(const Options& options);

void print_line(std::string_view line);
// Flushes standard output: the exit status, and the error on stderr when it could not be written.
int finish_output(const Options& options);
// Prints a failed call's error; returns the exit status, 1.
int fail_call(const Connection& connection, const Error& error, const Options& options);

// What a reply to probe.add says beside the probes: matches of globs that can't be probed. Empty: there are none.
// "3 skipped: __restore_rt: blacklisted; --verbose lists all", or, of several reasons, "30 skipped, 28 of them as f: it
// can't be read; --verbose lists all". total: how many there are, when the list is cut short.
std::string skipped_summary(JsonView skipped, bool verbose, std::uint64_t total = 0);
// What the daemon says of single probes: where one really is, what has been optimised out there.
void note_of_probes(JsonView probes);
// One line for each on stderr, or with --json one object of all.
void report_skipped(JsonView skipped, bool json);

// Of target.exited: " (killed by signal 15)", " (exit code 0)"; empty when the daemon does not know.
std::string how_it_ended(JsonView params);
std::string how_it_ended(std::optional<std::uint64_t> code, std::optional<std::uint64_t> signal);
// What daemon.switched says, for people.
const char* how_it_was_switched(JsonView params);
// What probe.gone says. waits: such probes wait for their code.
std::string how_they_went(JsonView params, bool waits);

// A member of the "failed" of a reply, a probe that can't be put in place, as an error.
Error failed_error(JsonView failed);
// One error on stderr for each; how many.
std::size_t report_failed(JsonView failed, bool json);

// Whether the reply shows an enabled probe that is not in place: then the global switch is off.
bool shows_disarmed(JsonView probes);
// For an error or a note.
inline constexpr const char* kDisarmed = "the daemon is disarmed: no probe is hit";
inline constexpr const char* kArmHint = "`probectl arm` switches it on, for everybody";

}  // namespace probed::client
