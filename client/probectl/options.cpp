// See options.hpp. CLI11 reports through exceptions; they end here.
#include "client/probectl/options.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>

#include <CLI/CLI.hpp>

#include "client/probectl/report.hpp"

namespace probed::client {
namespace {

constexpr char kProbeHelp[] =
    "p[:[GROUP/]NAME] [MODULE:]LOCATION [FETCHARG]...  or  r[MAXACTIVE][:[GROUP/]NAME] [MODULE:]FUNCTION [FETCHARG]... "
    " "
    "or short: [MODULE:]LOCATION[%return] [FETCHARG]...";

// CLI11's own validators name their ranges by C++ types, in help texts and in messages.
CLI::Validator plain(CLI::Validator check, std::string message) {
  const auto describe = [check = std::move(check), message = std::move(message)](std::string& text) {
    return check(text).empty() ? "" : "'" + text + "' " + message;
  };
  return CLI::Validator(describe, "");
}
const auto kPidRange = plain(CLI::Range(1, std::numeric_limits<pid_t>::max()), "is no process id");
const auto kPositive = plain(CLI::PositiveNumber, "is no positive number");

void add_pid(CLI::App& sub, Options& o, bool required) {
  auto* option = sub.add_option("-p,--pid", o.pid, "the process")->type_name("PID")->check(kPidRange);
  if (required) option->required();
}

void add_pid_positional(CLI::App& sub, Options& o) {
  sub.add_option("PID", o.pid, "the process")->type_name("")->required()->check(kPidRange);
}

void add_stream_options(CLI::App& sub, Options& o) {
  sub.add_option("--count", o.count, "end after N events")->type_name("N")->check(kPositive);
  sub.add_option("--duration", o.seconds, "end after so many seconds")->type_name("SEC")->check(kPositive);
  sub.add_option("-o,--output", o.out_file, "send the events to a file")->type_name("FILE");
  static const std::map<std::string, OutputFormat> formats{{"text", OutputFormat::text}, {"json", OutputFormat::json}};
  sub.add_option_function<std::string>("--format", [&o](const std::string& word) { o.format = formats.at(word); })
      ->description("text or json")
      ->type_name("FORMAT")
      ->check(plain(CLI::IsMember(formats), "is not one of text, json"));
}

void set_up_trace(CLI::App& sub, Options& o) {
  add_pid(sub, o, false);
  sub.add_option("-n,--name", o.target_name, "the process whose name or executable's base name is exactly this")
      ->type_name("NAME");
  sub.add_option("-e,--probe", o.probes, "a probe in the language of probectl --help; repeatable")
      ->type_name("PROBE")
      ->required()
      ->allow_extra_args(false);
  sub.add_option("--filter", o.filter, "only events for which this is true, for every PROBE")->type_name("EXPR");
  add_stream_options(sub, o);
  sub.add_flag("--follow-fork", o.follow_fork, "children of the process have the probes too");
  sub.add_flag("--no-optimize", o.no_optimize, "keep the probes on the breakpoint tier");
  sub.add_flag("--no-spawn", o.no_spawn, "fail when no daemon answers, instead of starting a private one");
  sub.footer(
      "probectl trace [OPTIONS] (-p PID | -n NAME | -- CMD ARG...) -e PROBE [-e PROBE]...\n\n"
      "CMD runs until it ends by itself; its exit status is not passed on. When the trace ends first (^C, --count,\n"
      "--duration), CMD goes on untraced. With --follow-fork the trace still ends with the first process.\n");
}

void set_up_add(CLI::App& sub, Options& o) {
  add_pid(sub, o, true);
  sub.add_option("PROBE", o.probes, kProbeHelp)->type_name("")->required();
  sub.add_option("--filter", o.filter, "only events for which this is true, for every PROBE")->type_name("EXPR");
  sub.add_flag("--disabled", o.disabled, "register without arming");
  sub.add_flag("--no-optimize", o.no_optimize, "keep the probes on the breakpoint tier");
  sub.add_flag("--follow-fork", o.follow_fork, "children of the process have the probes too");
}

void set_up_selection(CLI::App& sub, Options& o) {
  auto* names = sub.add_option("NAME|ID", o.names, "a probe's NAME, GROUP/NAME or id")->type_name("");
  sub.add_flag("--all", o.all, "every probe")->excludes(names);
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

void set_up_optional_pid(CLI::App& sub, Options& o) { add_pid(sub, o, false); }

void set_up_stream(CLI::App& sub, Options& o) {
  add_pid(sub, o, false);
  sub.add_option("NAME", o.names, "only these probes (default: all)")->type_name("");
  add_stream_options(sub, o);
}

void set_up_format(CLI::App& sub, Options& o) {
  sub.add_option("NAME|ID", o.names, "a probe's NAME, GROUP/NAME or id")->type_name("")->required()->expected(1);
}

void set_up_functions(CLI::App& sub, Options& o) {
  add_pid(sub, o, true);
  sub.add_option("GLOB", o.pattern, "only functions whose name matches")->type_name("");
  sub.add_option("--limit", o.count, "at most N functions")->type_name("N")->check(kPositive);
}

void set_up_location(CLI::App& sub, Options& o) {
  add_pid(sub, o, true);
  sub.add_option("LOCATION", o.pattern, "the place")->type_name("")->required();
}

void set_up_lines(CLI::App& sub, Options& o) {
  add_pid(sub, o, true);
  sub.add_option("FILE", o.pattern, "the source file")->type_name("")->required();
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
    {Command::add, "add", "add probes that outlive this command, all of them or none", set_up_add},
    {Command::remove, "remove", "remove probes", set_up_selection},
    {Command::enable, "enable", "enable probes", set_up_selection},
    {Command::disable, "disable", "disable probes", set_up_selection},
    {Command::list, "list", "the probes, one a line", set_up_optional_pid},
    {Command::profile, "profile", "name, hits, missed, filtered of each probe", set_up_optional_pid},
    {Command::stream, "stream", "events of probes that exist", set_up_stream},
    {Command::format, "format", "the fields of a probe's events", set_up_format},
    {Command::arm, "arm", "global switch: arm every enabled probe", set_up_nothing},
    {Command::disarm, "disarm", "global switch: disarm all probes, keeping each one's state", set_up_nothing},
    {Command::optimize, "optimize", "global switch of jump optimisation", set_up_optimize},
    {Command::functions, "functions", "what can be probed", set_up_functions},
    {Command::vars, "vars", "the variables visible at a place", set_up_location},
    {Command::lines, "lines", "the lines of a source file that can be probed", set_up_lines},
    {Command::status, "status", "the state of the daemon", set_up_nothing},
};

void add_common(CLI::App& app, Options& o, bool& json) {
  app.add_option("--socket", o.socket, "the daemon's socket [$PROBED_SOCKET, /run/probed/probed.sock]")
      ->type_name("PATH");
  app.add_flag("--json", json, "one JSON object a line");
}

// What the parser cannot say: conditions over several options. Empty: all is well.
std::string conflict(const Options& o, bool has_mark) {
  const int targets = (o.pid ? 1 : 0) + (o.target_name.empty() ? 0 : 1) + (has_mark ? 1 : 0);
  if (o.command == Command::trace && targets != 1) return "give exactly one of -p PID, -n NAME and -- CMD ARG...";
  if (o.command == Command::trace && has_mark && o.command_line.empty()) return "no command after --";
  const bool selects = o.command == Command::remove || o.command == Command::enable || o.command == Command::disable;
  if (selects && o.names.empty() && !o.all) return "name at least one probe, or give --all";
  return "";
}

Exit usage_error(const std::string& message, const std::string& sub_command, bool json) {
  const auto help = sub_command.empty() ? "probectl --help" : "probectl " + sub_command + " --help";
  const Error error{Reason::bad_params, (sub_command.empty() ? "" : sub_command + ": ") + message, "see " + help, {}};
  return {2, "", error_report(error, json)};
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
    app.set_version_flag("--version", "probectl " PROBED_VERSION);
    app.set_help_flag("-h,--help", "this help");
    app.require_subcommand(1);
    add_common(app, options, json);
    for (const auto& row : kSubCommands) {
      auto* sub = app.add_subcommand(row.name, row.help);
      row.set_up(*sub, options);
      add_common(*sub, options, json);
      sub->callback([this, &row] { chosen = &row; });
    }
    app.footer("PROBE is the kernel's probe language: " + std::string(kProbeHelp) +
               "\nExit status: 0 done, 1 what was asked failed, 2 wrong usage.\n");
  }

  std::string sub_command() const {
    const auto used = app.get_subcommands();
    return used.empty() ? "" : used.front()->get_name();
  }

  std::string explain(const CLI::ParseError& e) const {
    const auto unused = app.remaining();
    if (app.get_subcommands().empty() && !unused.empty()) {
      const char* kind = unused.front().starts_with('-') ? "option" : "sub-command";
      return std::string("there is no ") + kind + " '" + unused.front() + "'";
    }
    return e.what();
  }
};

}  // namespace

std::variant<Options, Exit> parse_options(std::vector<std::string> args) {
  auto command_line = split_command_line(args);
  const bool json = std::find(args.begin(), args.end(), "--json") != args.end();
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
  if (parser.json) options.format = OutputFormat::json;
  if (command_line) options.command_line = *command_line;
  const auto problem = conflict(options, command_line.has_value());
  if (!problem.empty()) return usage_error(problem, parser.sub_command(), json);
  return options;
}

}  // namespace probed::client
