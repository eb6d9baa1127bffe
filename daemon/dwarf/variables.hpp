// Variables by name at one place in the code: where they are, and how their values are to be shown.
//
// Thread: any; calls lock the module's debug information. Whatever a name leads to is bounded: parts of structures by
// depth and number, lists by length.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/lang/definition.hpp"
#include "proto/base/result.hpp"

namespace probed::dwarf {

class DebugInfo;  // info.hpp

enum class Shape : std::uint8_t {
  number,      // integers, bool, floating point, enumerations
  pointer,     // and addresses of functions
  text,        // char*
  characters,  // char[N]
  array,
  structure,
  other,
};

// A text that a length ends, not a zero: std::string, Rust's &str, Go's string.
struct CountedText {
  values::Placement pointer, length;
  std::uint8_t length_size = 8;  // bytes of the length
};

// A value that can be fetched.
struct Value {
  std::vector<std::string> path;  // below what was asked for: members, "[N]" for elements
  values::Placement place;
  std::uint64_t size = 0;  // bytes
  bool is_signed = false;
  Shape shape = Shape::other;
  values::Type type;                // how it is shown; of numbers, pointers, texts and arrays of such
  std::string declared;             // its type in the source's language
  std::string note;                 // what is shown in its place; empty: itself
  std::optional<CountedText> text;  // of a structure that is known as one
  // Of an alternative: how many parts further in front its number stands, and what that is for this one; 0: it is none.
  std::size_t chooser = 0;
  std::uint64_t choice = 0;
};

// What can be named at a place.
struct VisibleVariable {
  std::string name, type;
  std::string kind;    // "parameter", "local", "static"
  std::string absent;  // why it has no value there; empty: it has one
};

// What only the running program can tell.
struct Outside {
  // The address of an object that other debug information or none defines; nullopt: unknown.
  std::function<std::optional<std::uint64_t>(std::string_view name)> object;
  // Where a thread has the module's thread-local variables (the steps end at their first byte), or absent.
  std::function<values::Placement()> thread_block;
  // Where a thread has the thread-local variable of this name and size, by its symbol; nullopt: there is none, or
  // several. `shared`: it may be another module's.
  std::function<std::optional<values::Placement>(std::string_view name, std::uint64_t size, bool shared)>
      thread_object = {};
  // The address of the word by which the module itself finds the variable that it has at that address in its file: the
  // loader writes there whose is meant. nullopt: always its own.
  std::function<std::optional<std::uint64_t>(std::uint64_t address)> loaders_word = {};
  // At a static probe: the number of 8 bytes that its $argN is, which isn't the function's; else unset.
  std::function<Result<values::Placement>(unsigned number)> static_argument = {};
};

class Variables {
 public:
  // address: in the file; bias: what to add to get the target's. inlined: which function is meant, by its qualified
  // name, of those that are inlined so that they begin there; empty: the innermost around the address, or at the first
  // instruction of a function that one.
  Variables(std::shared_ptr<const DebugInfo> info, std::uint64_t address, std::uint64_t bias, Outside outside,
            std::string inlined = {});

  // [*|&]NAME followed by any of ->member, .member, [N]; NAME: an identifier, with its scopes or without, or $argN, or
  // %REG, or $retval: what the function returns, of which the places are those at its return. (TYPE)PATH and (PATH) may
  // stand for PATH and NAME.
  // Errors: bad_definition, without a column.
  Result<Value> find(std::string_view path) const;
  // The same with structures and lists of them in their parts; at most `limit` of them.
  Result<std::vector<Value>> parts(std::string_view path, std::size_t limit) const;
  // Whether a $retval is just a word in a register for all that is known: of no function here, in assembler, an integer
  // of a language that doesn't call as C does.
  bool result_is_plain_word() const;
  // The names of the function's parameters, in order. Errors: unsupported, when nothing is known of the function.
  Result<std::vector<std::string>> parameters() const;
  // What isn't known because a file is missing, for people; empty: nothing.
  std::string lacking() const;
  // Of all scopes around the place but the outermost, innermost first, then the outermost's.
  Result<std::vector<VisibleVariable>> visible() const;

 private:
  std::shared_ptr<const DebugInfo> info_;
  std::uint64_t address_, bias_;
  Outside outside_;
  std::string inlined_;
};

}  // namespace probed::dwarf
