// The methods: names, parameters, results, reasons. The prose is PROTOCOL.md's; this is what machines read.
//
// To add a method: a row here, a row in daemon/api/dispatch.cpp, a section in PROTOCOL.md, then regenerate openrpc.json
// (build proto/write-openrpc and redirect its output); tests hold all four against each other.
#include <array>
#include <limits>

#include "proto/schema.hpp"

namespace probed::proto {
namespace {

constexpr std::uint64_t kMax64 = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint64_t kMax32 = std::numeric_limits<std::uint32_t>::max();
constexpr std::uint64_t kMaxCount = std::numeric_limits<std::int64_t>::max();
constexpr std::uint64_t kMaxPid = 4194304;   // PID_MAX_LIMIT, include/linux/threads.h
constexpr std::uint64_t kMaxText = 65536;    // bytes of a definition, a filter, a glob
constexpr std::uint64_t kMaxName = 1024;     // bytes of a probe's name
constexpr std::uint64_t kMaxProbes = 16384;  // definitions in one request
constexpr std::uint64_t kMaxList = 1 << 20;  // what one message can hold anyway
constexpr std::uint64_t kMaxSeconds = 1'000'000'000;
constexpr bool kRequired = true, kOptional = false;

constexpr std::string_view kPidHint =
    "a process id from 2 to 4194304, as in /proc; process 1 (init) is never traced, for the system ends with it";

// ---- builders: one for each shape, so that the tables below read as tables ----

constexpr Field flag(std::string_view name, std::string_view text, bool required = kOptional) {
  return {.name = name, .type = Type::boolean, .required = required, .description = text};
}
constexpr Field integer(std::string_view name, std::uint64_t max, std::string_view text, bool required = kRequired,
                        std::int64_t min = 0) {
  return {.name = name, .type = Type::integer, .required = required, .min = min, .max = max, .description = text};
}
constexpr Field count(std::string_view name, std::string_view text) { return integer(name, kMax64, text); }
constexpr Field text(std::string_view name, std::uint64_t max, std::string_view description, bool required = kRequired,
                     std::int64_t min = 0) {
  return {.name = name, .type = Type::string, .required = required, .min = min, .max = max, .description = description};
}
constexpr Field said(std::string_view name, std::string_view description) { return text(name, kMax64, description); }
constexpr Field address(std::string_view name, std::string_view description) {
  return {.name = name, .type = Type::address, .required = true, .min = 3, .max = 18, .description = description};
}
constexpr Field pid(bool required) {
  return {.name = "pid",
          .type = Type::integer,
          .required = required,
          .min = 2,
          .max = kMaxPid,
          .description = "process id, in the daemon's pid namespace",
          .hint = kPidHint};
}
constexpr Field list(std::string_view name, const Field& item, std::uint64_t max, std::string_view description,
                     bool required = kRequired, std::int64_t min = 0) {
  return {.name = name,
          .type = Type::array,
          .required = required,
          .min = min,
          .max = max,
          .description = description,
          .items = &item};
}
constexpr Field record(std::string_view name, std::span<const Field> fields, std::string_view description,
                       bool required = kRequired) {
  return {.name = name, .type = Type::object, .required = required, .description = description, .fields = fields};
}

// ---- shared shapes ----

constexpr std::array kVersion{
    text("name", 256, "what the program calls itself"),
    text("version", 256, "its version"),
};
constexpr std::array kPid{pid(kRequired)};
constexpr std::array kOptionalPid{pid(kOptional)};
constexpr std::array kPidResult{integer("pid", kMaxPid, "the target's process id")};

constexpr Field kChildrenLetGo =
    integer("childrenLetGo", kMax64, "children of it that were not followed; absent: none", kOptional);
constexpr std::array kTarget{
    integer("pid", kMaxPid, "process id"),
    count("startTime", "field 22 of /proc/PID/stat: with pid, what identifies a process for good (64 bit)"),
    said("comm", "the process's name, as in /proc/PID/comm"),
    said("exe", "path of the program, as in /proc/PID/exe"),
    integer("threads", kMax32, "threads it has"),
    integer("probes", kMax32, "probes registered for it, everybody's"),
    flag("followFork", "children are followed", kRequired),
    kChildrenLetGo,
};
constexpr Field kTargetItem = record("target", kTarget, "one traced process");

constexpr std::array kArg{
    said("name", "the argument's name, a key of an event's args"),
    said("type", "its type, as in the definition language"),
};
constexpr Field kArgItem = record("arg", kArg, "one fetch argument");

constexpr std::array kUnwatched{
    count("times", "so often another daemon has put it back"),
    count("from", "the last time: when the counters were last known, in nanoseconds of CLOCK_MONOTONIC (64 bit)"),
    count("to", "the last time: when it was in place again, in nanoseconds of CLOCK_MONOTONIC (64 bit); 0: it isn't"),
    count("total", "nanoseconds, of all times (64 bit)"),
};
constexpr Field kUnwatchedField = record(
    "unwatched", kUnwatched, "while no daemon ran: hits then are in no counter; absent: one always ran", kOptional);
constexpr Field kNote = said("note", "for people");
constexpr std::array kFrom{
    integer("id", kMax32, "its number"),
    said("name", "GROUP/NAME"),
};
constexpr std::array kProbe{
    integer("id", kMax32, "the probe's number; never reused while the daemon lives"),
    said("name", "GROUP/NAME"),
    said("kind", "p: probe; r: return probe"),
    integer("pid", kMaxPid, "the target"),
    address("address", "where it stands in the target"),
    said("symbol", "the function and offset, \"processCommand+0x0\""),
    integer("places", kMax64, "of a static probe with several places; address and symbol are its first one's",
            kOptional),
    said("module", "base name of the file"),
    said("state", "enabled, disabled, gone (its code is no longer there) or pending (it waits for its code)"),
    text("stateReason", kMax64, "why the daemon has disabled it, or could not put it back; absent: neither", kOptional),
    said("tier", "stepped, boosted or optimized: what a hit costs"),
    text("tierReason", kMax64, "why it is not optimized; absent: it is, or is about to be", kOptional),
    said("definition", "as it was added"),
    said("filter", "as it was added; empty: none"),
    text("condition", kMax64, "the filter in its definition, which a hit has to pass, too; absent: none", kOptional),
    list("args", kArgItem, kMaxList, "what its events carry, in order"),
    list("notes", kNote, kMax64, "what its user should know: where it really is, what has been optimised out",
         kOptional),
    record("from", kFrom, "the pending definition with a glob that it is a match of; absent: none", kOptional),
    flag("persist", "outlives the connection that added it", kRequired),
    flag("armed", "in place in the target's text now", kRequired),
    integer("maxRate", kMaxCount, "as it was added: hits in a second after which it is disabled; 0: any number",
            kOptional),
    integer("expires", kMax64, "when it is disabled: nanoseconds of CLOCK_MONOTONIC (64 bit); absent: never",
            kOptional),
    count("hits", "events made, delivered or missed (64 bit)"),
    count("missed", "hits that made no event, or whose event was lost before any client's buffer (64 bit)"),
    count("filtered", "passes a filter turned away; not counted as hits (64 bit)"),
    kUnwatchedField,
    integer("abandoned", kMax64, "of a return probe: calls that ended without a return; not counted as hits (64 bit)",
            kOptional),
    integer("unmatched", kMax64,
            "of a return probe: returns of calls that began before it was there; not counted as hits (64 bit)",
            kOptional),
};
constexpr Field kProbeItem = record("probe", kProbe, "one probe");
constexpr std::array kSkipped{
    said("symbol", "the function"),
    address("address", "where it stands in the target"),
    said("reason", "why it can't be probed: one of the reasons of errors"),
    said("message", "the same for people"),
};
constexpr Field kSkippedItem = record("skipped", kSkipped, "one match of a glob that can't be probed");
constexpr std::array kProbesResult{list("probes", kProbeItem, kMax64, "the probes, in order of their ids")};

constexpr std::array kFailed{
    integer("id", kMax32, "the probe's number"),
    said("name", "GROUP/NAME"),
    said("reason", "why it can't be put in place: one of the reasons of errors"),
    said("message", "the same for people"),
    text("hint", kMax64, "what to do about it", kOptional),
};
constexpr Field kFailedItem = record("failed", kFailed, "one probe that can't be put in place now");
constexpr Field kFailedList =
    list("failed", kFailedItem, kMax64, "those whose code has gone or changed, if any; the others are not hindered",
         kOptional);
constexpr std::array kChangedResult{kProbesResult[0], kFailedList};

constexpr std::array<Reason, 0> kNoErrors{};
constexpr std::array kTargetErrors{Reason::no_such_process, Reason::permission_denied};
constexpr std::array kDenied{Reason::permission_denied};

// ---- initialize ----

constexpr std::array kInitialize{
    record("client", kVersion, "who is calling", kOptional),
    integer("protocol", 1, "the protocol version the client speaks", kOptional, 1),
};
constexpr std::array kCapabilities{
    flag("batch", "batches are answered", kRequired),
    flag("contentLength", "the editors' framing is understood", kRequired),
    integer("maxMessage", kMax64, "bytes of the longest message taken"),
    integer("eventBuffer", kMax64, "bytes of events kept for a client that reads slowly"),
    list("experimental", kArg[0], kMaxList, "parameters that may change or go"),
};
constexpr std::array kPeer{
    integer("uid", kMax32, "the caller's user id, as the kernel told the daemon"),
    integer("gid", kMax32, "its group id"),
    flag("admin", "may use the global switches", kRequired),
};
constexpr std::array kInitializeResult{
    record("server", kVersion, "name and version of the daemon"),
    integer("protocol", kMax32, "protocol version"),
    said("arch", "machine, as uname -m says"),
    record("capabilities", kCapabilities, "what this daemon can do"),
    record("peer", kPeer, "who the daemon thinks is calling"),
};

// ---- target.* ----

constexpr std::array kAttach{
    pid(kRequired),
    flag("followFork", "children of this process are traced too, with copies of its probes"),
    flag("holdAtEntry",
         "the process is about to exec: stop it at the new program's first instruction, send target.ready, wait for "
         "target.resume"),
    flag("persist", "it stays attached when this connection ends"),
    flag(
        "holdAtExecs",
        "the same at each exec from now on, also of the children that it is followed into: such a child is a target of "
        "its own then; target.left tells"),
};
constexpr std::array kAttachErrors{Reason::no_such_process,    Reason::permission_denied, Reason::already_traced,
                                   Reason::unsupported_target, Reason::target_gone,       Reason::out_of_memory};
constexpr std::array kTargetsResult{list("targets", kTargetItem, kMax64, "those the caller may trace")};
constexpr std::array kDetachErrors{Reason::no_such_process, Reason::permission_denied, Reason::not_attached};

// ---- probe.* ----

constexpr std::array kSpec{
    text("definition", kMaxText, "in the probe language: p, r, or the short form", kRequired, 1),
    text("filter", kMaxText, "an event filter; empty: none", kOptional),
    flag("disabled", "register it disabled"),
    flag("optimize", "false: keep it on the breakpoint tier"),
    flag("pending", "while its code is not loaded it waits for it, now and whenever it is unloaded"),
};
constexpr Field kSpecItem = record("probe", kSpec, "one probe to add");
constexpr std::array kAdd{
    pid(kRequired),
    list("probes", kSpecItem, kMaxProbes, "all of them or none are added; of a glob, what can be probed", kRequired, 1),
    flag("persist", "they outlive this connection"),
    integer("limit", kMaxCount, "hits after which the whole batch is disabled, exactly", kOptional, 1),
    integer(
        "maxRate", kMaxCount,
        "hits of one of them in a second after which it is disabled; 0: any number; absent: what the daemon allows a "
        "breakpoint",
        kOptional),
    integer("expire", kMaxSeconds, "seconds after which they are disabled", kOptional, 1),
    flag("followFork", "when this attaches the target: follow its children"),
    flag("x-step", "experimental: use the stepped tier, for tests and benchmarks"),
};
constexpr std::array kAddErrors{
    Reason::no_such_process,         Reason::permission_denied, Reason::already_traced,
    Reason::existing_breakpoint,     Reason::blacklisted,       Reason::not_instruction_boundary,
    Reason::no_such_symbol,          Reason::no_such_module,    Reason::ambiguous_symbol,
    Reason::bad_definition,          Reason::bad_filter,        Reason::unsupported_target,
    Reason::unsupported_instruction, Reason::unsupported,       Reason::unmapped_address,
    Reason::not_executable,          Reason::duplicate_name,    Reason::target_gone,
    Reason::out_of_memory,           Reason::limit_exceeded,
};
constexpr std::array kAdded{
    kProbesResult[0],
    list("skipped", kSkippedItem, kMax64, "what the globs among the definitions match and can't be probed"),
};
constexpr Field kId = integer("id", kMax32, "a probe's number");
constexpr Field kName = text("name", kMaxName, "NAME or GROUP/NAME", kRequired, 1);
constexpr std::array kSelector{
    list("ids", kId, kMaxList, "by number", kOptional),
    list("names", kName, kMaxList, "by name, in every target the caller may trace", kOptional),
    Field{.name = "all",
          .type = Type::boolean,
          .min = 1,
          .description = "every probe of every target the caller may trace"},
};
constexpr std::array<std::string_view, 3> kOneSelector{"ids", "names", "all"};
constexpr std::array kFormat{
    integer("id", kMax32, "a probe's number", kOptional),
    text("name", kMaxName, "NAME or GROUP/NAME", kOptional, 1),
};
constexpr std::array<std::string_view, 2> kOneFormat{"id", "name"};
constexpr std::array kFormatField{
    said("name", "the key in an event; for args, the key in its args"),
    said("type", "in the definition language's words"),
    flag("common", "a field every such event has, not an argument", kRequired),
};
constexpr Field kFormatFieldItem = record("field", kFormatField, "one field");
constexpr std::array kFormatResult{
    integer("id", kMax32, "the probe's number"),
    said("name", "GROUP/NAME"),
    said("kind", "p or r"),
    list("fields", kFormatFieldItem, kMaxList, "what its events carry, in order"),
};
constexpr std::array kFormatErrors{Reason::no_such_probe};
constexpr std::array kProfile{
    integer("id", kMax32, "the probe's number"),
    said("name", "GROUP/NAME"),
    integer("pid", kMaxPid, "the target"),
    count("hits", "as in probe.list (64 bit)"),
    count("missed", "as in probe.list (64 bit)"),
    count("filtered", "as in probe.list (64 bit)"),
    integer("abandoned", kMax64, "likewise (64 bit)", kOptional),
    integer("unmatched", kMax64, "likewise (64 bit)", kOptional),
};
constexpr Field kProfileItem = record("probe", kProfile, "one probe's counters");
constexpr std::array kProfileResult{list("probes", kProfileItem, kMax64, "in order of their ids")};

// ---- events.* ----

constexpr Field kReference = {
    .name = "probe", .type = Type::reference, .min = 1, .max = kMaxName, .description = "a probe's name or id"};
constexpr std::array kSubscribe{
    pid(kOptional),
    list("probes", kReference, kMaxList, "only these; absent: every probe, later ones too", kOptional),
    flag("withHits", "answer with hits and startedNs, too"),
};
constexpr std::array kSubscription{integer("subscription", kMax64, "what events.subscribe returned")};
constexpr std::array kSubscribed{
    integer("subscription", kMax64, "for events.unsubscribe"),
    integer("hits", kMax64,
            "with withHits: what the probes that it begins with have counted before, in this daemon's life (64 bit)",
            kOptional),
    integer("startedNs", kMax64, "with withHits: when this daemon started, by CLOCK_MONOTONIC; another one has another",
            kOptional),
};
constexpr std::array kSubscribeErrors{Reason::no_such_process, Reason::permission_denied, Reason::no_such_probe,
                                      Reason::limit_exceeded};
constexpr std::array kUnsubscribeErrors{Reason::no_such_subscription};
constexpr std::array kTotals{
    count("delivered", "events sent for this subscription, all before this answer (64 bit)"),
    count("missed", "events lost to it because the client read slowly (64 bit)"),
};

// ---- daemon.* ----

constexpr std::array kArmed{flag("armed", "the switch's state now", kRequired), kFailedList};
constexpr std::array kOptimize{flag("enabled", "whether probes are optimised", kRequired)};
constexpr std::array kOptimizeResult{flag("optimize", "the switch's state now", kRequired)};
constexpr std::array kStatus{
    said("version", "of the daemon"),
    flag("armed", "the global switch", kRequired),
    flag("optimize", "the global switch of optimisation", kRequired),
    integer("targets", kMax32, "traced processes the caller may trace"),
    integer("probes", kMax32, "probes in them"),
    integer("clients", kMax32, "connections; a caller who is no administrator sees its own only"),
    integer("subscriptions", kMax32, "likewise"),
    count("hits", "of all probes so far; for a caller who is no administrator, of the present ones it sees (64 bit)"),
    count("missed", "likewise (64 bit)"),
    count("filtered", "likewise (64 bit)"),
    count("optimized", "probes that a jump leads to now"),
    count("longestPauseNs", "the longest time for which the optimiser has kept a thread stopped, ns"),
    said("priority", "how the tracer goes before other programs: realtime, nice, slice or none"),
    count("longestWaitNs", "the longest time for which it has waited for a processor all the same, ns"),
    count("starvedNs", "the sum of its waits of 20 ms and more, ns"),
};

// ---- symbols.* ----

constexpr std::array kFunctions{
    pid(kRequired),
    text("glob", kMaxText, "[MODULE:]GLOB, matched against plain and demangled names; absent: all", kOptional),
    integer("limit", 10000000, "at most so many; absent: all that there is room for", kOptional, 1),
};
constexpr std::array kFunction{
    said("name", "as people write it, demangled"), said("linkageName", "as in the symbol table"),
    said("module", "base name of the file"),       address("address", "in the target"),
    count("size", "bytes; 0: unknown (64 bit)"),
};
constexpr Field kFunctionItem = record("function", kFunction, "one function");
constexpr std::array kFunctionsResult{
    list("functions", kFunctionItem, kMax64, "in order of their addresses"),
    flag("truncated", "there are more than limit, or than 32 MiB of text", kRequired),
};
constexpr std::array kUsdt{
    pid(kRequired),
    text("glob", kMaxText, "[[MODULE:]PROVIDER:]NAME, globs; absent: all", kOptional),
    integer("limit", 10000000, "at most so many; absent: all that there is room for", kOptional, 1),
};
constexpr Field kPlace = address("address", "of one place, in the target");
constexpr std::array kUsdtProbe{
    said("provider", "as in the program's source"),
    said("name", "as in the program's source"),
    said("module", "base name of the file"),
    count("arguments", "how many there are: $arg1, $arg2, ..."),
    said("operands", "the arguments of its first place as the compiler wrote them: SIZE@OPERAND, signed when below 0"),
    flag("semaphore", "it has a counter that tells the program whether somebody listens", kRequired),
    list("addresses", kPlace, kMax64, "its places in the target, ascending"),
};
constexpr Field kUsdtItem = record("probe", kUsdtProbe, "one static probe");
constexpr std::array kUsdtResult{
    list("probes", kUsdtItem, kMax64, "in order of their providers and names"),
    flag("truncated", "there are more than limit, or than 32 MiB of text", kRequired),
};
constexpr std::array kVariables{pid(kRequired),
                                text("location", kMaxText, "a place, as in a definition", kRequired, 1)};
constexpr std::array kVariable{
    said("name", "as in the source"),
    said("type", "as in the source"),
    said("kind", "parameter, local or static"),
    text("absent", kMax64, "why it has no value at this place; absent: it has one", kOptional),
};
constexpr Field kVariableItem = record("variable", kVariable, "one variable");
constexpr std::array kVariablesResult{
    list("variables", kVariableItem, kMax64, "those of the innermost scope first"),
};
constexpr std::array kLines{
    pid(kRequired),
    text("file", kMaxText, "[MODULE:]FILE, or the last parts of its path", kRequired, 1),
    integer("limit", 10000000, "at most so many; absent: all that there is room for", kOptional, 1),
};
constexpr std::array kLine{
    said("file", "its whole path, as the compiler saw it"),        integer("line", kMax32, "the line's number"),
    address("address", "of its first instruction, in the target"), said("function", "that it is in"),
    said("module", "base name of the file that was loaded"),
};
constexpr Field kLineItem = record("line", kLine, "one line that has code");
constexpr std::array kLinesResult{
    list("lines", kLineItem, kMax64, "in order of files and lines"),
    flag("truncated", "there are more than limit, or than 32 MiB of text", kRequired),
};
constexpr std::array kFunctionsErrors{Reason::no_such_process, Reason::permission_denied, Reason::no_such_module};
constexpr std::array kVariablesErrors{Reason::no_such_process, Reason::permission_denied, Reason::no_such_module,
                                      Reason::no_such_symbol,  Reason::bad_definition,    Reason::unsupported};
constexpr std::array kLinesErrors{Reason::no_such_process, Reason::permission_denied, Reason::no_such_module,
                                  Reason::no_such_symbol, Reason::unsupported};

constexpr std::array kMethods{
    Method{"initialize",
           "Say who is calling and learn what the daemon can do; optional",
           kInitialize,
           {},
           kInitializeResult,
           kNoErrors},
    Method{"target.attach", "Trace a process; it runs on", kAttach, {}, kTarget, kAttachErrors},
    Method{"target.detach",
           "Remove every probe of a process, everybody's, and let it go",
           kPid,
           {},
           kPidResult,
           kDetachErrors},
    Method{"target.list", "Traced processes", {}, {}, kTargetsResult, kNoErrors},
    Method{"target.resume", "Let a process that is held at its entry go on", kPid, {}, kPidResult, kDetachErrors},
    Method{"probe.add", "Add probes to a process, all or none; attaches it when needed", kAdd, {}, kAdded, kAddErrors},
    Method{"probe.remove", "Remove probes; the answer has their final counters", kSelector, kOneSelector, kProbesResult,
           kNoErrors},
    Method{"probe.enable", "Enable probes; those that are gone are looked for again", kSelector, kOneSelector,
           kChangedResult, kNoErrors},
    Method{"probe.disable", "Disable probes: they cost nothing until enabled again", kSelector, kOneSelector,
           kChangedResult, kNoErrors},
    Method{"probe.list", "Registered probes", kOptionalPid, {}, kProbesResult, kTargetErrors},
    Method{"probe.profile", "Counters of registered probes", kOptionalPid, {}, kProfileResult, kTargetErrors},
    Method{"probe.format", "The fields of one probe's events", kFormat, kOneFormat, kFormatResult, kFormatErrors},
    Method{"events.subscribe", "Have events sent over this connection", kSubscribe, {}, kSubscribed, kSubscribeErrors},
    Method{"events.unsubscribe", "End a subscription", kSubscription, {}, kTotals, kUnsubscribeErrors},
    Method{"daemon.arm", "Put every enabled probe in place", {}, {}, kArmed, kDenied},
    Method{
        "daemon.disarm", "Take every probe out of its target, keeping each one's own state", {}, {}, kArmed, kDenied},
    Method{"daemon.optimize",
           "Switch jump optimisation on or off, for present and later probes",
           kOptimize,
           {},
           kOptimizeResult,
           kDenied},
    Method{"daemon.status", "The switches and totals", {}, {}, kStatus, kNoErrors},
    Method{"symbols.functions", "What can be probed in a process", kFunctions, {}, kFunctionsResult, kFunctionsErrors},
    Method{"symbols.usdt", "The static probes (USDT) of a process", kUsdt, {}, kUsdtResult, kFunctionsErrors},
    Method{"symbols.variables",
           "Variables that have a name at a place",
           kVariables,
           {},
           kVariablesResult,
           kVariablesErrors},
    Method{"symbols.lines", "Lines of a source file that have code", kLines, {}, kLinesResult, kLinesErrors},
    Method{"rpc.discover", "This description, as an OpenRPC document", {}, {}, {}, kNoErrors, true},
};

// ---- notifications ----

constexpr Field kEvent = record("event", {}, "one hit, exactly what `probectl trace --json` prints");
constexpr std::array kEvents{
    integer("subscription", kMax64, "what events.subscribe returned"),
    list("events", kEvent, kMax64, "in the order of their delivery; may be empty"),
    count("missed", "events of this subscription lost since the previous such notification (64 bit)"),
};
constexpr std::array kExited{
    integer("pid", kMaxPid, "the target that ended; its probes are gone"),
    integer("code", 255, "its exit code, when it exited by itself", kOptional),
    integer("signal", 64, "the signal, when one killed it", kOptional),
    kChildrenLetGo,
};
constexpr Field kUnprivileged = flag("unprivileged",
                                     "true: its file gives privileges (set-user-ID, capabilities) that it has not got, "
                                     "as an unprivileged daemon traces it",
                                     kOptional);
constexpr std::array kExeced{
    integer("pid", kMaxPid, "the target that runs another program now; its probes are gone"),
    flag("attached",
         "it is still traced; false, too, when it runs a program now that the caller may not trace, and was let go for "
         "that",
         kRequired),
    said("comm", "the new program's name, as ps shows it"),
    kUnprivileged,
    kChildrenLetGo,
};
constexpr std::array kLeft{
    integer("pid", kMaxPid, "a target, of which this was a child"),
    integer("child", kMaxPid, "the child, which runs another program now, without the target's probes"),
    said("comm", "that program's name, as ps shows it"),
    flag("attached", "it is a target of its own now, held at its entry (holdAtExecs)", kRequired),
    kUnprivileged,
};
constexpr std::array kDetached{
    integer("pid", kMaxPid, "the target that target.detach let go; its probes are gone"),
    kChildrenLetGo,
};
constexpr std::array kForked{
    integer("pid", kMaxPid, "a target attached with followFork"),
    integer("child", kMaxPid, "its new child, followed from its first instruction"),
};
constexpr std::array kMemberExited{
    integer("pid", kMaxPid, "a target attached with followFork"),
    integer("member", kMaxPid, "itself, or a child that it is followed into: this one has ended"),
    integer("code", 255, "its exit code, when it exited by itself", kOptional),
    integer("signal", 64, "the signal, when one killed it", kOptional),
    count("left", "how many of them live on, with the target's probes"),
};
constexpr std::array kReady{integer("pid", kMaxPid, "the target that is held at its entry until target.resume")};
constexpr std::array kProbeDisabled{
    list("ids", kId, kMaxList, "the probes, of this connection or subscribed to by it"),
    said("reason", "limit: the hits asked for have come; rate: more in a second than may; expired: its time is over"),
    said("message", "for people"),
};
constexpr std::array kProbesSwitched{
    list("ids", kId, kMaxList, "the probes, which this connection had subscribed to"),
    flag("enabled", "they are enabled now", kRequired),
    said("message", "for people"),
};
constexpr std::array kDaemonSwitched{
    flag("armed", "probes are in their targets; false: all have been taken out, until daemon.arm", kRequired),
};
constexpr std::array kStopping{said("message", "why, for people")};
constexpr std::array kProbesRemoved{
    list("ids", kId, kMaxList, "the probes, which this connection had subscribed to"),
    said("message", "for people"),
};
constexpr std::array kEventsEnded{
    integer("subscription", kMax64, "what events.subscribe returned"),
    said("message", "why, for people"),
};
constexpr std::array kProbesGone{
    list("ids", kId, kMaxList, "the probes, of this connection or its subscriptions"),
    text("message", kMax64, "why they don't come back: the code there can't be probed", kOptional),
    said("what", "which they are, for people"),
};

constexpr std::array kReturnedProbe{
    integer("id", kMax32, "the probe"),
    list("args", kArgItem, kMaxList, "what its events carry now, in order"),
};
constexpr Field kReturnedItem = record("probe", kReturnedProbe, "one probe that is in place");

constexpr std::array kProbesReturned{
    list("ids", kId, kMaxList, "the probes, of this connection"),
    list("notes", kNote, kMax64, "\"GROUP/NAME: ...\": what their user should know of the places they have now",
         kOptional),
    list("probes", kReturnedItem, kMaxList, "those of them that are in place", kOptional),
};

constexpr std::array kProbesUnplaced{
    list("ids", kId, kMaxList, "a pending probe of this connection"),
    said("message", "which, and why"),
};

constexpr std::array kProbesAdded{
    integer("from", kMax32, "the pending definition with a glob, of this connection or subscribed to by it"),
    list("ids", kId, kMaxList, "probes that its matches have become; may be empty"),
    list("args", kArgItem, kMaxList, "what the events of each of these carry, in order"),
    list("skipped", kSkippedItem, kMaxList, "matches that can't be probed: the first 1,000"),
    count("skippedCount", "how many those are"),
};

constexpr std::array kNotifications{
    NotificationInfo{"events", "Events of one subscription", kEvents},
    NotificationInfo{"events.ended", "No probe is left of those that a subscription has asked for", kEventsEnded},
    NotificationInfo{"target.exited", "A target ended", kExited},
    NotificationInfo{"target.execed", "A target runs another program", kExeced},
    NotificationInfo{"target.left", "A target's child runs another program", kLeft},
    NotificationInfo{"target.detached", "A target was let go", kDetached},
    NotificationInfo{"target.forked", "A target has a new child, which is followed", kForked},
    NotificationInfo{"target.memberExited", "One of a target's followed processes ended, others live on",
                     kMemberExited},
    NotificationInfo{"target.ready", "A target attached with holdAtEntry stands at its entry", kReady},
    NotificationInfo{"probe.disabled", "The daemon disabled probes by itself", kProbeDisabled},
    NotificationInfo{"probe.switched", "Somebody else enabled or disabled probes that this connection subscribes to",
                     kProbesSwitched},
    NotificationInfo{"daemon.switched", "Somebody else armed or disarmed the daemon, while this connection subscribes",
                     kDaemonSwitched},
    NotificationInfo{"daemon.stopping", "The daemon ends, and has sent all events", kStopping},
    NotificationInfo{"probe.removed", "Probes were removed that this connection subscribes to", kProbesRemoved},
    NotificationInfo{"probe.added", "What a pending glob matches was loaded, and has become probes", kProbesAdded},
    NotificationInfo{"probe.gone", "The code of probes was unmapped, moved or rewritten", kProbesGone},
    NotificationInfo{"probe.unplaced", "What a pending probe names was loaded, but it can't be probed",
                     kProbesUnplaced},
    NotificationInfo{"probe.returned", "The code of probes is there again, and they are in it", kProbesReturned},
};

}  // namespace

std::span<const Method> methods() { return kMethods; }
std::span<const NotificationInfo> notifications() { return kNotifications; }

}  // namespace probed::proto
