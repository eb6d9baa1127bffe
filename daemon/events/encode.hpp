// Records to JSON. Asio thread; no allocation for an event, once the buffer has grown.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/events/record.hpp"
#include "daemon/lang/definition.hpp"

namespace probed::values {
class PackedReader;
}

namespace probed::events {

// Text that is copied in whole blocks, which costs a few instructions and no call.
class BlockText {
 public:
  static constexpr std::size_t kBlock = 32;

  BlockText() = default;
  explicit BlockText(std::string text) : text_(std::move(text)), size_(text_.size()) {
    text_.resize((size_ + kBlock - 1) / kBlock * kBlock);
  }
  std::size_t size() const { return size_; }
  // Writes up to kBlock - 1 bytes more than it has.
  char* put(char* at) const {
    for (std::size_t i = 0; i < size_; i += kBlock) std::memcpy(at + i, text_.data() + i, kBlock);
    return at + size_;
  }

 private:
  std::string text_;
  std::size_t size_ = 0;
};

// What stays the same for all of a probe's events; made once per probe.
struct EventSchema {
  struct Argument {
    enum class Form : std::uint8_t { plain, with_sign, hexadecimal, text, symbol, floating, boolean, character, named };
    BlockText name;  // with what stands around it: "\"c\":", ",\"argc\":", and of a variable's parts ",\"p\":{\"x\":"
    Form form = Form::plain;
    bool is_array = false;
  };

  ProbeId shown{};          // the id that events carry; 0: the record's
  std::string probe_json;   // "\"probes/cmd\"": the full name, already a JSON string
  std::string symbol_json;  // "\"processCommand+0x0\"", already a JSON string
  std::string func_json;    // of a return probe: the function's name, likewise; empty: another probe
  std::vector<lang::FetchArg> args;
  std::vector<Argument> arguments;  // of each of them
  BlockText end;                    // behind the last one
  std::size_t room = 0;             // bytes for all of these, the contents of texts and arrays aside
  // Of each argument, where there are alternatives (FetchArg::chooser): else empty.
  static constexpr std::size_t kNone = ~std::size_t{0};
  struct Alternative {
    std::size_t chooser = kNone;  // the argument that says which one is there; kNone: this is none
    bool chooses = false;         // it is such an argument itself
    std::string lead_json;        // of the first that stand in one place: what is in front of them all
    std::string end_json;         // of the last part of one: behind it
    bool is_last = false;         // of those in one place
  };
  std::vector<Alternative> alternatives;
};

EventSchema make_schema(std::string_view full_name, std::string_view symbol_and_offset,
                        std::span<const lang::FetchArg> args);
// A return probe's. func: the function's name.
EventSchema make_return_schema(std::string_view full_name, std::string_view func, std::span<const lang::FetchArg> args);

// `symbolize` turns the value of a `symbol` typed argument into text; may be empty.
using Symbolizer = std::string (*)(const void* context, std::uint64_t address);

class EventEncoder {
 public:
  // {"probe":...,"id":...,"pid":...,"tid":...,"comm":...,"cpu":...,"time":...,"ip":"0x...","symbol":...,"args":{...}}.
  // A return's `symbol` is the place it returns to, and behind it come "ret_ip":"0x...","func":...,"duration":... and,
  // after a tail call, "tail_call":true. Keys exactly in this order. Valid until the next call. A probe's id stands for
  // its schema: always the same one.
  std::string_view encode(const EventSchema& schema, const RecordHeader& header, std::span<const std::byte> packed,
                          Symbolizer symbolize = nullptr, const void* context = nullptr);
  // Addresses may have other names from now on.
  void forget_names() { names_ = {}; }

 private:
  // The text in front of a time's last 8 digits and behind them, as it was for the last hit of that probe and thread.
  struct Frame {
    RecordHeader of;
    std::uint64_t leading = 0;  // the time's other digits; 0: there are none
    BlockText front, back;
  };
  // The name of a place that something returned to, as a JSON string.
  struct Name {
    ProbeId probe{};
    std::uint64_t address = 0;
    std::string json;
  };
  struct Symbols {
    Symbolizer symbolize;
    const void* context;
  };

  Frame& frame_of(const EventSchema& schema, const RecordHeader& header);
  using Form = EventSchema::Argument::Form;
  void need(std::size_t more);
  void put_argument(const EventSchema& schema, std::size_t i, values::PackedReader& packed, const Symbols& symbols);
  void put_alternatives(const EventSchema& schema, values::PackedReader& packed, const Symbols& symbols);
  void put_element(Form form, const values::Type& type, values::PackedReader& packed, const Symbols& symbols);
  void put_array(Form form, const values::Type& type, values::PackedReader& packed, const Symbols& symbols);
  void put_named(const values::Type& type, std::uint64_t value);
  void put_symbol(std::uint64_t address, const Symbols& symbols);
  const std::string& name_of(const RecordHeader& header, const Symbols& symbols);
  void put_return(const EventSchema& schema, const RecordHeader& header, const std::string& name);

  std::array<Frame, 64> frames_;
  std::array<Name, 256> names_;
  std::vector<char> buffer_ = std::vector<char>(1024);
  char* at_ = nullptr;
  std::size_t promised_ = 0;
};

// Appends one event, with an encoder of its own.
void append_event_json(std::string& out, const EventSchema& schema, const RecordHeader& header,
                       std::span<const std::byte> packed, Symbolizer symbolize = nullptr,
                       const void* context = nullptr);

// Appends a JSON string. Bytes that are no UTF-8 are escaped losslessly as U+DC80..U+DCFF lone surrogates ("\udc80" for
// byte 0x80), as Python's surrogateescape does. What a terminal would obey (C0, DEL, C1) is escaped, too.
void append_json_string(std::string& out, std::string_view bytes);

}  // namespace probed::events
