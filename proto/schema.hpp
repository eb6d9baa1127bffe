// What the parameters and results of the methods look like, as tables; validation and the machine-readable description
// both come from them, so they cannot disagree.
//
// Thread: any; the tables are constants. Validation runs before anything is done for a request.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "proto/base/result.hpp"
#include "proto/json.hpp"

namespace probed::proto {

enum class Type : std::uint8_t {
  boolean,    // min 1: must be true
  integer,    // min..max
  string,     // min..max bytes, no NUL
  address,    // "0x…", results only
  reference,  // a probe's name, or its id as a number or a string of digits
  array,      // min..max items
  object,
};

struct Field {
  std::string_view name;
  Type type = Type::string;
  bool required = false;
  std::int64_t min = 0;
  std::uint64_t max = 0;
  std::string_view description;
  std::span<const Field> fields = {};  // of an object
  const Field* items = nullptr;        // of an array; its name is what messages call one
  std::string_view hint = {};          // in place of the generated one, where what is allowed needs a reason
};

struct Method {
  std::string_view name;
  std::string_view summary;
  std::span<const Field> params;
  std::span<const std::string_view> exactly_one;  // of these params must be given
  std::span<const Field> result;                  // members of the result object; empty when `any_result`
  std::span<const Reason> errors;                 // beyond those every method can have
  bool any_result = false;
};

// The table, and one row of it; null: no such method.
std::span<const Method> methods();
const Method* find_method(std::string_view name);

// Whether params are what the method takes. Errors: bad_params; the message names the key, the hint what is allowed.
Result<void> validate(const Method& method, const Json& params);
// The same for a result: what tests hold the server's answers against.
Result<void> validate_result(const Method& method, const Json& result);

// "integer, 2 to 4194304"; for messages.
std::string describe(const Field& field);

// ---- notifications the server sends, for the description ----

struct NotificationInfo {
  std::string_view name;
  std::string_view summary;
  std::span<const Field> params;
};
std::span<const NotificationInfo> notifications();

}  // namespace probed::proto
