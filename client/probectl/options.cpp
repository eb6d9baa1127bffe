// See options.hpp. CLI11 reports through exceptions; they end here.
#include "client/probectl/options.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <string_view>
#include <utility>

#include <CLI/CLI.hpp>

#include "client/display.hpp"
#include "client/probectl/report.hpp"
#include "client/utf8.hpp"

namespace probed::client {
namespace {

constexpr char kFooter[] =
    "PROBE is the kernel's probe language:  [p[:[GROUP/]NAME]] [MODULE:]LOCATION [FETCHARG]...\n"
    "                              returns:  r[MAXACTIVE][:[GROUP/]NAME] [MODULE:]FUNCTION [FETCHARG]...\n"
    "  processCommand                              a function; globs take every match: 'libc:str*'\n"
    "  'p:cmd processCommand c=$arg1 n=+72($arg1):s32'\n"
    "                                              named cmd; its first argument, and a 32-bit number 72 bytes behind\n"
    "                                              where that points\n"
    "  'libc:open64 file=+0($arg1):string flags=$arg2:x32'\n"
    "  'r:done processCommand c=$arg1 $retval $duration'\n"
    "                                              each return of the function, or processCommand%return: what it was\n"
    "                                              given, what it returns, and how many nanoseconds it took\n"
    "  'work n if n > 5 && o->id == 7'             only hits that the filter behind if lets pass\n"
    "man probectl has all of it.\n\n"
    "Exit status: 0 done, 1 what was asked failed, 2 wrong usage.\n";
constexpr char kProbeShapes[] =
    "PROBE: [p[:[GROUP/]NAME]] [MODULE:]LOCATION [FETCHARG]... [if FILTER]; for returns r[MAXACTIVE][:[GROUP/]NAME]\n"
    "FUNCTION or FUNCTION%return, where $retval is what it returns and $duration the nanoseconds that it took.\n";
constexpr char kProbeHelp[] = "a probe in the language of probectl --help; -:[GROUP/]NAME removes one";
constexpr char kWhichHelp[] = "a probe's NAME, GROUP/NAME or id";

constexpr pid_t kMaxPid = 4194304;  // PID_MAX_LIMIT, include/linux/threads.h

// Stands before a -:NAME while CLI11 looks at it, which would take it for an option.
constexpr char kNoOption = '\x1f';

// CLI11's own validators name their ranges by C++ types, in help texts and in messages.
CLI::Validator plain(CLI::Validator check, std::string message) {
  const auto describe = [check = std::move(check), message = std::move(message)](std::string& text) {
    return check(text).empty() ? "" : "'" + text + "' " + message;
  };
  return CLI::Validator(describe, "");
}

std::string why_no_pid(std::string& text) {
  const bool digits = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  const auto number = digits && text.size() < 19 ? std::stoll(text) : std::numeric_limits<long long>::max();
  if (!digits || number == 0) return "'" + text + "' is no process id";
  if (number > kMaxPid) return "no process has the number " + text + ": they end at " + std::to_string(kMaxPid);
  return number == 1 ? "process 1 (init) is never traced: the system ends with it" : "";
}
const CLI::Validator kPidRange(why_no_pid, "");
// Neither "nan" nor "inf", which are numbers to the library.
std::string why_not_positive(std::string& text) {
  const bool number = text.find_first_not_of("0123456789.eE+-") == std::string::npos;
  return number && CLI::PositiveNumber(text).empty() ? "" : "'" + text + "' is no positive number";
}
const CLI::Validator kPositive(why_not_positive, "");

// "10ms", "1.5s", "2m" becomes the seconds that a number alone is, too; what isn't written so stays.
void to_seconds(std::string& text) {
  const std::size_t end = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string_view unit = std::string_view(text).substr(end);
  constexpr std::pair<std::string_view, double> kUnits[] = {
      {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}, {"m", 60}, {"h", 3600}};
  const auto known = std::ranges::find(kUnits, unit, &std::pair<std::string_view, double>::first);
  double number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + end, number);
  if (known == std::end(kUnits) || error != std::errc{} || stop != text.data() + end) return;
  text = fmt::format("{}", number * known->second);
}
std::string why_no_time(std::string& text) {
  std::string seconds = text;
  to_seconds(seconds);
  if (!why_not_positive(seconds).empty())
    return "'" + text + "' is no time: write seconds, or as in 200us, 200ms, 1.5s, 2m, 1h";
  text = seconds;
  return "";
}
const CLI::Validator kTime(why_no_time, "");

// Whole seconds.
CLI::Validator whole_time(std::uint64_t least, std::uint64_t most) {
  const auto check = [=](std::string& text) {
    std::string seconds = text;
    to_seconds(seconds);
    std::uint64_t number = 0;
    const auto [stop, error] = std::from_chars(seconds.data(), seconds.data() + seconds.size(), number);
    const bool whole = error == std::errc{} && stop == seconds.data() + seconds.size();
    if (!whole || number < least || number > most)
      return fmt::format("'{}' is no time of {} to {} whole seconds: write 90, 90s, 5m, 8h", text, least, most);
    text = seconds;
    return std::string();
  };
  return CLI::Validator(check, "");
}

std::string why_empty(std::string& text) {
  return text.empty() ? "'' is empty: give a name, or leave the option out" : "";
}
const CLI::Validator kNotEmpty(why_empty, "");

void add_pid(CLI::App& sub, Options& o, bool required, const char* help = "the process") {
  auto* option = sub.add_option("-p,--pid", o.pid, help)->type_name("PID")->check(kPidRange);
  if (required) option->required();
}

void add_pid_positional(CLI::App& sub, Options& o) {
  sub.add_option("PID", o.pid, "the process")->type_name("")->required()->check(kPidRange);
}

void add_stream_options(CLI::App& sub, Options& o) {
  sub.add_option("--count", o.count, "end after N events; exactly then, so probes stay breakpoints")
      ->type_name("N")
      ->check(kPositive);
  sub.add_option("--duration", o.seconds, "end after that time: seconds, or as in 200ms, 1.5s, 2m")
      ->type_name("TIME")
      ->transform(kTime);
  auto* file =
      sub.add_option("-o,--output", o.out_file, "send the events to a file")->type_name("FILE")->check(kNotEmpty);
  auto* append = sub.add_flag("--append", o.append, "go on behind what is in FILE")->needs(file);
  sub.add_flag("--overwrite", o.overwrite, "throw away what is in FILE")->needs(file)->excludes(append);
  auto* sort = sub.add_flag_callback(
      "--sort", [&o] { o.sort = true; }, "events in the order of their times, 250 ms later; so at a terminal");
  sub.add_flag_callback(
         "--no-sort", [&o] { o.sort = false; }, "events as they come; so into a file or a pipe")
      ->excludes(sort);
  static const std::map<std::string, OutputFormat> formats{{"text", OutputFormat::text}, {"json", OutputFormat::json}};
  sub.add_option_function<std::string>("--format", [&o](const std::string& word) { o.format = formats.at(word); })
      ->description("text or json")
      ->type_name("FORMAT")
      ->check(plain(CLI::IsMember(formats), "is not one of text, json"));
  static const std::map<std::string, Times> times{
      {"mono", Times::mono}, {"wall", Times::wall}, {"delta", Times::delta}};
  sub.add_option_function<std::string>("--time", [&o](const std::string& word) { o.times = times.at(word); })
      ->description("of text: seconds since the boot (mono), time of day (wall), seconds since the line before (delta)")
      ->type_name("CLOCK")
      ->check(plain(CLI::IsMember(times), "is not one of mono, wall, delta"));
}

void add_reconnect(CLI::App& sub, Options& o) {
  sub.add_option("--reconnect", o.reconnect,
                 "wait so long for a daemon that has gone to come back, and go on; 0: end at once [5s]")
      ->type_name("TIME")
      ->transform(whole_time(0, 86'400));
}

void add_no_optimize(CLI::App& sub, Options& o) {
  sub.add_flag("--no-optimize", o.no_optimize, "keep these probes breakpoints: no jumps");
}

void add_pending(CLI::App& sub, Options& o) {
  sub.add_flag("--pending", o.pending, "wait for what isn't loaded yet, and whenever it is unloaded");
}

void add_limits(CLI::App& sub, Options& o) {
  sub.add_option("--max-rate", o.max_rate,
                 "disable a probe that is hit more than N times in a second; 0: never do that")
      ->type_name("N")
      ->check(
          plain(CLI::Range(std::int64_t{0}, std::numeric_limits<std::int64_t>::max()), "is no whole number from 0"));
  sub.add_option("--expire", o.expire, "disable these probes after that time: seconds, or as in 90s, 5m, 8h")
      ->type_name("TIME")
      ->transform(whole_time(1, 1'000'000'000));
}

void add_no_spawn(CLI::App& sub, Options& o) {
  sub.add_flag("--no-spawn", o.no_spawn, "fail when no daemon answers, instead of starting a private one");
}

void add_verbose(CLI::App& sub, Options& o, const char* what) { sub.add_flag("-v,--verbose", o.verbose, what); }

void set_up_trace(CLI::App& sub, Options& o) {
  add_pid(sub, o, false);
  sub.add_option("-n,--name", o.target_name, "the process whose name or executable's base name is exactly this")
      ->type_name("NAME");
  sub.add_option("-e,--probe", o.probes, "what to probe, in the language of probectl --help; repeatable")
      ->type_name("PROBE")
      ->required()
      ->allow_extra_args(false);
  sub.add_option("--filter", o.filter, "only events for which this is true, for every PROBE")->type_name("EXPR");
  add_stream_options(sub, o);
  sub.add_flag("--follow-fork", o.follow_fork, "children of the process have the probes too");
  add_no_optimize(sub, o);
  add_limits(sub, o);
  add_pending(sub, o);
  add_no_spawn(sub, o);
  add_reconnect(sub, o);
  add_verbose(sub, o, "name every match of a glob that can't be probed, with the reason");
  sub.footer(
      "probectl trace [OPTIONS] (-p PID | -n NAME | -- CMD ARG...) -e PROBE [-e PROBE]...\n\n"
      "CMD runs until it ends by itself; its exit status is not passed on. When the trace ends first (--count,\n"
      "--duration), CMD goes on untraced; ^C at a terminal reaches CMD as well. With --follow-fork the trace ends\n"
      "with the last of the processes that it follows. Programs that CMD or a followed child executes have the\n"
      "probes, too; with -p and -n those that the process executes, if --follow-fork is given.\n\n" +
      std::string(kProbeShapes));
}

void set_up_add(CLI::App& sub, Options& o) {
  add_pid(sub, o, true);
  sub.add_option("PROBE", o.probes, kProbeHelp)->type_name("")->required();
  sub.add_option("--filter", o.filter, "only events for which this is true, for every PROBE")->type_name("EXPR");
  sub.add_flag("--disabled", o.disabled, "register without arming");
  add_no_optimize(sub, o);
  add_limits(sub, o);
  add_pending(sub, o);
  sub.add_flag("--follow-fork", o.follow_fork, "children of the process have the probes too");
  add_verbose(sub, o, "name every match of a glob that can't be probed, with the reason");
  sub.footer(kProbeShapes);
}

void set_up_selection(CLI::App& sub, Options& o) {
  auto* names = sub.add_option("NAME|ID", o.names, kWhichHelp)->type_name("");
  sub.add_flag("--all", o.all, "every probe")->excludes(names);
  add_pid(sub, o, false, "only probes of this process");
}

void set_up_attach(CLI::App& sub, Options& o) {
  add_pid_positional(sub, o);
  sub.add_flag("--follow-fork", o.follow_fork, "attach to its children too");
}

void set_up_optimize(CLI::App& sub, Options& o) {
  static const std::map<std::string, bool> words{{"on", true}, {"off", false}};
  sub.add_option_function<std::string>("on|off", [&o](const std::string& word) { o.switch_on = words.at(word); })
      ->type_name("")
      ->required()
      ->check(plain(CLI::IsMember(words), "is neither on nor off"));
}

void set_up_list(CLI::App& sub, Options& o) {
  add_pid(sub, o, false, "only probes of this process");
  add_verbose(sub, o, "with a header, ids, processes and filters, as at a terminal");
}

void set_up_stream(CLI::App& sub, Options& o) {
  add_pid(sub, o, false, "only probes of this process");
  sub.add_option("NAME|ID", o.names, "only these probes, also later ones of these names (default: all)")->type_name("");
  add_stream_options(sub, o);
  add_reconnect(sub, o);
}

void set_up_format(CLI::App& sub, Options& o) {
  sub.add_option("NAME|ID", o.names, kWhichHelp)->type_name("")->required()->expected(1);
  add_pid(sub, o, false, "the process, where several have such a probe");
}

void set_up_functions(CLI::App& sub, Options& o) {
  add_pid(sub, o, true);
  sub.add_option("GLOB", o.pattern, "[MODULE:]GLOB: only functions whose name matches, in every module or in one")
      ->type_name("");
  sub.add_flag("--usdt", o.usdt, "static probes instead: PROVIDER:NAME; GLOB is then [[MODULE:]PROVIDER:]NAME");
  sub.add_option("--limit", o.count, "at most N functions")->type_name("N")->check(kPositive);
  add_no_spawn(sub, o);
}

void set_up_location(CLI::App& sub, Options& o) {
  add_pid(sub, o, true);
  sub.add_option("LOCATION", o.pattern, "the place: a function, FILE:LINE, or what else a definition may name")
      ->type_name("")
      ->required();
  add_no_spawn(sub, o);
}

void set_up_lines(CLI::App& sub, Options& o) {
  add_pid(sub, o, true);
  sub.add_option("FILE", o.pattern, "[MODULE:]FILE: the source file, or the last parts of its path")
      ->type_name("")
      ->required();
  sub.add_option("--limit", o.count, "at most N lines")->type_name("N")->check(kPositive);
  add_no_spawn(sub, o);
}

void set_up_nothing(CLI::App&, Options&) {}

struct SubCommand {
  Command command;
  const char* name;
  const char* help;
  void (*set_up)(CLI::App&, Options&);
};
constexpr SubCommand kSubCommands[] = {
    {Command::trace, "trace", "attach, arm, stream events, clean up on ^C", set_up_trace},
    {Command::attach, "attach", "attach to a process", set_up_attach},
    {Command::detach, "detach", "remove every probe of a process and let go of it", add_pid_positional},
    {Command::ps, "ps", "the processes attached to", set_up_nothing},
    {Command::add, "add", "add probes that outlive this command, all or none (of a glob: what can be)", set_up_add},
    {Command::remove, "remove", "remove probes", set_up_selection},
    {Command::enable, "enable", "enable probes", set_up_selection},
    {Command::disable, "disable", "disable probes", set_up_selection},
    {Command::list, "list", "the probes, one a line", set_up_list},
    {Command::profile, "profile", "name, hits, missed, filtered of each probe", set_up_list},
    {Command::stream, "stream", "events of probes that exist", set_up_stream},
    {Command::format, "format", "the fields of a probe's events", set_up_format},
    {Command::arm, "arm", "global switch: arm every enabled probe", set_up_nothing},
    {Command::disarm, "disarm", "global switch: disarm all probes, keeping each one's state", set_up_nothing},
    {Command::optimize, "optimize", "global switch of jump optimisation", set_up_optimize},
    {Command::functions, "functions", "the functions of a process: address, size, name, module", set_up_functions},
    {Command::vars, "vars", "the variables that have a name at a place", set_up_location},
    {Command::lines, "lines", "the lines of a source file that can be probed", set_up_lines},
    {Command::status, "status", "the state of the daemon", set_up_nothing},
};

void add_common(CLI::App& app, Options& o, bool& json) {
  app.add_option("--socket", o.socket, "the daemon's socket [$PROBED_SOCKET, /run/probed/probed.sock]")
      ->check(kNotEmpty)
      ->type_name("PATH");
  app.add_flag("--json", json, "one JSON object a line");
}

// What the parser cannot say: conditions over several options. Empty: all is well.
bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const auto character = utf8::decode(text);
    if (!character.valid) return false;
    text.remove_prefix(character.length);
  }
  return true;
}

std::string conflict(const Options& o, bool has_mark) {
  const int targets = (o.pid ? 1 : 0) + (o.target_name.empty() ? 0 : 1) + (has_mark ? 1 : 0);
  if (o.command == Command::trace && targets != 1) return "give exactly one of -p PID, -n NAME and -- CMD ARG...";
  if (o.command == Command::trace && has_mark && o.command_line.empty()) return "no command after --";
  for (const auto& definition : o.probes) {
    if (definition.empty()) return "the definition of a probe is empty: name at least a function";
    if (o.command == Command::trace && definition.starts_with('-'))
      return "'" + definition + "' removes a probe, and a trace removes its own by itself: use probectl remove";
  }
  auto sent = o.probes;  // in JSON, which is UTF-8
  sent.insert(sent.end(), {o.filter, o.pattern});
  if (const auto bad = std::ranges::find_if_not(sent, is_utf8); bad != sent.end())
    return "'" + display(*bad) + "' is no UTF-8 text: write it in that, or use * and ? for what can't be";
  const bool selects = o.command == Command::remove || o.command == Command::enable || o.command == Command::disable;
  if (selects && o.names.empty() && !o.all) return "name at least one probe, or give --all";
  return "";
}

Exit usage_error(const std::string& message, const std::string& sub_command, bool json) {
  const auto help = sub_command.empty() ? "probectl --help" : "probectl " + sub_command + " --help";
  const Error error{Reason::bad_params, (sub_command.empty() ? "" : sub_command + ": ") + message, "see " + help, {}};
  return {2, "", error_report(error, json)};
}

// One for a typing mistake: letters changed, missing, added or swapped.
bool nearly_equal(std::string_view typed, std::string_view word) {
  if (typed.size() > word.size() + 1 || word.size() > typed.size() + 1) return false;
  std::size_t front = 0, back = 0;
  const std::size_t shorter = std::min(typed.size(), word.size());
  while (front < shorter && typed[front] == word[front]) ++front;
  while (back < shorter - front && typed[typed.size() - 1 - back] == word[word.size() - 1 - back]) ++back;
  const auto a = typed.substr(front, typed.size() - front - back), b = word.substr(front, word.size() - front - back);
  const bool swapped = a.size() == 2 && b.size() == 2 && a[0] == b[1] && a[1] == b[0];
  return swapped || (a.size() <= 1 && b.size() <= 1);
}

std::string unknown_word(const std::string& word) {
  if (word.starts_with('-')) return "there is no option '" + word + "'";
  const auto near = std::find_if(std::begin(kSubCommands), std::end(kSubCommands),
                                 [&](const SubCommand& row) { return nearly_equal(word, row.name); });
  const auto guess = near == std::end(kSubCommands) ? "" : std::string("; did you mean ") + near->name + "?";
  return "there is no sub-command '" + word + "'" + guess;
}

std::string unknown_option(const CLI::App& sub, const std::string& word) {
  std::string guess;
  for (const CLI::Option* option : sub.get_options())
    for (const std::string& name : option->get_lnames())
      if (nearly_equal(word.substr(2), name)) guess = "; did you mean --" + name + "?";
  return unknown_word(word) + guess;
}

// CLI11's "--pid: At Most 1 required but received 2" and "--pid: 1 required PID missing", for people. Empty: another
// message.
std::string counted_wrong(const std::string& text) {
  const auto colon = text.find(": ");
  if (colon == std::string::npos) return "";
  const auto option = text.substr(0, colon), what = text.substr(colon + 2);
  constexpr std::string_view kMissing = "1 required ", kTooMany = "At Most 1 required";
  if (what.starts_with(kTooMany)) return option + " may be given once only";
  if (!what.starts_with(kMissing)) return "";
  const auto value = what.substr(kMissing.size(), what.find(' ', kMissing.size()) - kMissing.size());
  return value.empty() ? option + " is missing" : option + " needs a value: " + value;
}

// `probectl help`, `probectl help trace`
void turn_help_around(std::vector<std::string>& args) {
  if (args.empty() || args.front() != "help") return;
  args.erase(args.begin());
  const auto is_one = [&](const SubCommand& row) { return args.front() == row.name; };
  if (args.empty() || args.front().starts_with('-') || std::ranges::any_of(kSubCommands, is_one))
    args.push_back("--help");  // else it is said that there is none
}

void protect_removals(std::vector<std::string>& args) {
  if (std::find(args.begin(), args.end(), "add") == args.end()) return;
  for (auto& arg : args)
    if (arg.starts_with("-:")) arg.insert(0, 1, kNoOption);
}

void unprotect_removals(std::vector<std::string>& definitions) {
  for (auto& definition : definitions)
    if (definition.starts_with(kNoOption)) definition.erase(0, 1);
}

// CMD and its arguments are not options of ours, whatever they look like.
std::optional<std::vector<std::string>> split_command_line(std::vector<std::string>& args) {
  const auto mark = std::find(args.begin(), args.end(), "--");
  if (mark == args.end() || std::find(args.begin(), mark, "trace") == mark) return std::nullopt;
  std::vector<std::string> command_line(mark + 1, args.end());
  args.erase(mark, args.end());
  return command_line;
}

struct Parser {
  CLI::App app{"Traces running processes with probes that need no restart of them and no change to them.", "probectl"};
  Options options;
  bool json = false;
  const SubCommand* chosen = nullptr;

  Parser() {
    app.set_version_flag("-V,--version", "probectl " PROBED_VERSION);
    app.set_help_flag("-h,--help", "this help");
    app.require_subcommand(1);
    add_common(app, options, json);
    for (const auto& row : kSubCommands) {
      auto* sub = app.add_subcommand(row.name, row.help);
      row.set_up(*sub, options);
      add_common(*sub, options, json);
      sub->callback([this, &row] { chosen = &row; });
    }
    app.footer(kFooter);
  }

  bool is_given(const char* name) const {
    const auto* option = app.get_subcommands().front()->get_option_no_throw(name);
    return option && option->count() > 0;
  }

  std::string sub_command() const {
    const auto used = app.get_subcommands();
    return used.empty() ? "" : used.front()->get_name();
  }

  std::string explain(const CLI::ParseError& e) const {
    const auto unused = app.remaining(true);
    if (app.get_subcommands().empty() && !unused.empty()) return unknown_word(unused.front());
    const std::string text = e.what();
    const bool is_word = !unused.empty() && !unused.front().starts_with('-');
    if (sub_command() == "trace" && is_word) {
      const auto* option = app.get_subcommands().front()->get_option_no_throw("--probe");
      const auto given = option ? option->results() : std::vector<std::string>();
      if (given.empty() && unused.front().find_first_not_of("0123456789") == std::string::npos)
        return "a process is given with -p: write -p " + unused.front();
      if (!is_given("--pid") && !is_given("--name") && (!given.empty() || ::access(unused.front().c_str(), X_OK) == 0))
        return "a program to be started follows --: put -- in front of " + unused.front() +
               (given.empty() ? ", and what to probe after -e" : ", behind all options");
      if (given.empty()) return "what to probe is given with -e: write -e '" + unused.front() + "'";
      // The rest of a definition that the shell has divided.
      return "what follows -e must be one word for the shell: put the definition in quotes, -e '" + given.back() + " " +
             unused.front() + "'";
    }
    if (!app.get_subcommands().empty())
      for (const auto& word : unused)
        if (word.starts_with("--")) return unknown_option(*app.get_subcommands().front(), word);
    if (text == "--probe is required") return "say what to probe: -e PROBE";
    const auto counted = counted_wrong(text);
    return counted.empty() ? text : counted;
  }
};

}  // namespace

std::variant<Options, Exit> parse_options(std::vector<std::string> args) {
  auto command_line = split_command_line(args);
  const bool json = std::find(args.begin(), args.end(), "--json") != args.end();
  turn_help_around(args);
  protect_removals(args);
  Parser parser;
  try {
    std::reverse(args.begin(), args.end());  // CLI11 takes them last first
    parser.app.parse(std::move(args));
  } catch (const CLI::CallForVersion&) {
    return Exit{0, "probectl " PROBED_VERSION "\n", ""};
  } catch (const CLI::CallForHelp&) {
    return Exit{0, parser.app.help(), ""};  // of the sub-command, when one was given
  } catch (const CLI::ParseError& e) {
    return usage_error(parser.explain(e), parser.sub_command(), json);
  }
  auto& options = parser.options;
  options.command = parser.chosen->command;
  unprotect_removals(options.probes);
  if (parser.json && parser.is_given("--format") && !options.json())
    return usage_error("--json and --format text contradict each other", parser.sub_command(), json);
  if (parser.json) options.format = OutputFormat::json;
  if (command_line) options.command_line = *command_line;
  const auto problem = conflict(options, command_line.has_value());
  if (!problem.empty()) return usage_error(problem, parser.sub_command(), json);
  return options;
}

}  // namespace probed::client
