// What stays the same for all of a probe's events. See encode.hpp.
#include <algorithm>
#include <utility>

#include "daemon/events/digits.hpp"
#include "daemon/events/encode.hpp"
#include "daemon/values/packed.hpp"

namespace probed::events {
namespace {

// What stands in front of each value so that parts of variables become members of objects and elements of lists.
class Nesting {
 public:
  // keys: from the outermost object to the value; "[N]" is an element of a list.
  std::string lead_to(std::span<const std::string> keys) {
    const auto outer = keys.first(keys.size() - 1);
    const auto common = std::ranges::mismatch(open_, outer);
    const auto level = static_cast<std::size_t>(common.in1 - open_.begin());
    std::string text = close_to(level);
    if (std::exchange(any_, true)) text.push_back(',');
    for (std::size_t i = level; i < keys.size(); ++i) {
      if (!is_element(keys[i])) {
        append_json_string(text, keys[i]);
        text.push_back(':');
      }
      if (i + 1 == keys.size()) break;
      text.push_back(is_element(keys[i + 1]) ? '[' : '{');
      open_.push_back(keys[i]);
      closers_.push_back(is_element(keys[i + 1]) ? ']' : '}');
    }
    return text;
  }
  std::string close_to(std::size_t level) {
    std::string text(closers_.rbegin(), closers_.rend() - static_cast<std::ptrdiff_t>(level));
    closers_.resize(level);
    open_.resize(level);
    return text;
  }

 private:
  static bool is_element(std::string_view key) { return key.starts_with('['); }

  std::vector<std::string> open_;  // the keys of the objects and lists that are open
  std::string closers_;
  bool any_ = false;
};

// How a value is written, names and arrays aside.
using Form = EventSchema::Argument::Form;
Form form_of(const values::Type& type) {
  using values::BaseType;
  if (values::is_string(type.base)) return Form::text;
  if (type.names) return Form::named;
  if (type.bitfield && !type.bitfield->is_signed && type.base != BaseType::boolean) return Form::plain;
  if (values::is_hexadecimal(type.base)) return Form::hexadecimal;
  if (values::is_signed(type.base)) return Form::with_sign;
  if (type.base == BaseType::symbol) return Form::symbol;
  if (values::is_floating(type.base)) return Form::floating;
  if (type.base == BaseType::boolean) return Form::boolean;
  return type.base == BaseType::chr ? Form::character : Form::plain;
}

// The next one. name: what stands in front of it.
void add_argument(EventSchema& schema, std::string name) {
  const values::Type& type = schema.args[schema.arguments.size()].type;
  schema.room += name.size() + kLongestNumber + 2;  // or null, or an array's brackets
  schema.arguments.push_back({BlockText(std::move(name)), form_of(type), type.array.has_value()});
}

// Those from `from` on that stand in the same place: all of their texts.
class AlternativeTexts {
 public:
  AlternativeTexts(EventSchema& schema, std::size_t from) : schema_(schema), from_(from), to_(from) {
    const std::size_t chooser = from - args(from).chooser;
    depth_ = args(chooser).path.size();
    schema_.alternatives[chooser].chooses = true;
    for (; to_ < schema_.args.size() && args(to_).chooser != 0 && to_ - args(to_).chooser == chooser; ++to_)
      schema_.alternatives[to_].chooser = chooser;
  }

  // Where all of them stand.
  std::span<const std::string> place() const { return std::span(args(from_).path).first(depth_); }

  // lead: what stands in front of each. Returns one past the last.
  std::size_t write(std::string lead) {
    schema_.alternatives[from_].lead_json = std::move(lead);
    schema_.alternatives[to_ - 1].is_last = true;
    for (std::size_t i = from_; i < to_;) i = write_one(i);
    return to_;
  }

 private:
  const lang::FetchArg& args(std::size_t i) const { return schema_.args[i]; }

  // A value alone, or an object or list of its own.
  std::size_t write_one(std::size_t i) {
    const std::uint64_t choice = args(i).choice;
    if (args(i).path.size() == depth_) {
      add_argument(schema_, "");
      return i + 1;
    }
    const bool is_list = args(i).path[depth_].starts_with('[');
    Nesting nesting;
    std::string open = is_list ? "[" : "{";
    for (; i < to_ && args(i).choice == choice; ++i)
      add_argument(schema_, std::exchange(open, "") + nesting.lead_to(std::span(args(i).path).subspan(depth_)));
    schema_.alternatives[i - 1].end_json = nesting.close_to(0) + (is_list ? "]" : "}");
    return i;
  }

  EventSchema& schema_;
  std::size_t from_, to_, depth_ = 0;
};

}  // namespace

EventSchema make_schema(std::string_view full_name, std::string_view symbol_and_offset,
                        std::span<const lang::FetchArg> args) {
  EventSchema schema;
  append_json_string(schema.probe_json, full_name);
  append_json_string(schema.symbol_json, symbol_and_offset);
  schema.args.assign(args.begin(), args.end());
  if (std::ranges::any_of(args, [](const lang::FetchArg& arg) { return arg.chooser != 0; }))
    schema.alternatives.resize(args.size());
  Nesting nesting;
  for (std::size_t i = 0; i < args.size();) {
    if (args[i].chooser != 0) {
      AlternativeTexts texts(schema, i);
      i = texts.write(nesting.lead_to(texts.place()));
      continue;
    }
    const auto alone = std::span(&args[i].name, 1);
    add_argument(schema, nesting.lead_to(args[i].path.empty() ? alone : std::span(args[i].path)));
    ++i;
  }
  schema.end = BlockText(nesting.close_to(0) + "}}");
  schema.room += schema.end.size() + 2 * BlockText::kBlock;
  return schema;
}

EventSchema make_return_schema(std::string_view full_name, std::string_view func,
                               std::span<const lang::FetchArg> args) {
  EventSchema schema = make_schema(full_name, {}, args);
  append_json_string(schema.func_json, func);
  return schema;
}

}  // namespace probed::events
