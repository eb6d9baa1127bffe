// See schema.hpp: the walk over the tables that validates.
#include "proto/schema.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace probed::proto {
namespace {

constexpr std::array<std::string_view, 7> kTypeWords{"boolean",        "integer", "string", "address string",
                                                     "name or number", "array",   "object"};

std::string_view word(Type type) { return kTypeWords[static_cast<std::size_t>(type)]; }

std::string_view kind_of(const Json& value) {
  if (value.is_number_integer()) return "an integer";
  if (value.is_number()) return "a fraction, or beyond 64 bits";
  if (value.is_null()) return "null";
  if (value.is_boolean()) return "a boolean";
  if (value.is_string()) return "a string";
  return value.is_array() ? "an array" : "an object";
}

bool has_type(Type type, const Json& value) {
  switch (type) {
    case Type::boolean: return value.is_boolean();
    case Type::integer: return value.is_number_integer();
    case Type::string:
    case Type::address: return value.is_string();
    case Type::reference: return value.is_string() || value.is_number_unsigned();
    case Type::array: return value.is_array();
    case Type::object: return value.is_object();
  }
  return false;
}

std::string allowed_keys(std::span<const Field> fields) {
  std::string out;
  for (const Field& f : fields) out.append(out.empty() ? "" : ", ").append(f.name);
  return out.empty() ? "no parameters are taken" : "allowed are " + out;
}

Error bad(const std::string& method, std::string what, std::string hint) {
  return {Reason::bad_params, method + ": " + std::move(what), std::move(hint)};
}

class Validator {
 public:
  explicit Validator(const Method& method) : method_(method.name) {}

  Result<void> object(std::span<const Field> fields, const Json& object, const std::string& path) const {
    for (const auto& [key, value] : object.items())
      if (auto known = member(fields, key, value, path); !known) return known;
    for (const Field& f : fields)
      if (f.required && !object.contains(f.name))
        return bad(method_, "\"" + joined(path, f.name) + "\" is missing", hint(f));
    return {};
  }

 private:
  static std::string joined(const std::string& path, std::string_view name) {
    return path.empty() ? std::string(name) : path + "." + std::string(name);
  }
  static std::string hint(const Field& f) {
    return f.hint.empty() ? std::string(f.name) + ": " + describe(f) : std::string(f.hint);
  }

  Result<void> member(std::span<const Field> fields, const std::string& key, const Json& value,
                      const std::string& path) const {
    const auto field = std::ranges::find(fields, std::string_view(key), &Field::name);
    const std::string full = joined(path, std::string_view(key).substr(0, 64));
    if (field == fields.end()) return bad(method_, "unknown parameter \"" + full + "\"", allowed_keys(fields));
    return this->value(*field, value, full);
  }

  Result<void> value(const Field& f, const Json& value, const std::string& path) const {
    if (!has_type(f.type, value))
      return bad(method_, "\"" + path + "\" is " + std::string(kind_of(value)) + ", not " + describe(f), hint(f));
    switch (f.type) {
      case Type::boolean:
        if (f.min == 1 && !value.get<bool>()) return bad(method_, "\"" + path + "\" can only be true", hint(f));
        return {};
      case Type::integer: return integer(f, value, path);
      case Type::object: return object(f.fields, value, path);
      case Type::array: return array(f, value, path);
      case Type::string:
      case Type::reference:
      case Type::address: return value.is_string() ? string(f, value, path) : Result<void>();
    }
    return {};
  }

  Result<void> integer(const Field& f, const Json& value, const std::string& path) const {
    const bool low = value.is_number_unsigned() ? std::cmp_less(value.get<std::uint64_t>(), f.min)
                                                : value.get<std::int64_t>() < f.min;
    const bool high = value.is_number_unsigned() && value.get<std::uint64_t>() > f.max;
    if (low || high)
      return bad(method_, "\"" + path + "\" is " + value.dump() + "; allowed is " + describe(f), hint(f));
    return {};
  }

  Result<void> string(const Field& f, const Json& value, const std::string& path) const {
    const auto& text = value.get_ref<const std::string&>();
    if (std::cmp_less(text.size(), f.min) || text.size() > f.max)
      return bad(method_, "\"" + path + "\" has " + std::to_string(text.size()) + " bytes, not " + describe(f),
                 hint(f));
    if (text.find('\0') != text.npos) return bad(method_, "\"" + path + "\" holds a NUL character", hint(f));
    return {};
  }

  Result<void> array(const Field& f, const Json& value, const std::string& path) const {
    if (std::cmp_less(value.size(), f.min) || value.size() > f.max)
      return bad(method_, "\"" + path + "\" has " + std::to_string(value.size()) + " items, not " + describe(f),
                 hint(f));
    for (std::size_t i = 0; i < value.size(); ++i)
      if (auto item = this->value(*f.items, value[i], path + "[" + std::to_string(i) + "]"); !item) return item;
    return {};
  }

  std::string method_;
};

std::string joined_names(std::span<const std::string_view> names) {
  std::string out;
  for (const auto name : names) out.append(out.empty() ? "" : ", ").append(name);
  return out;
}

}  // namespace

std::string describe(const Field& f) {
  const std::string range = std::to_string(f.min) + " to " + std::to_string(f.max);
  switch (f.type) {
    case Type::boolean: return f.min == 1 ? "true" : "a boolean";
    case Type::integer: return "an integer, " + range;
    case Type::string: return "a string of " + range + " bytes";
    case Type::reference: return "a probe's name or id";
    case Type::array: return "an array of " + range + " items";
    case Type::object: return "an object (" + allowed_keys(f.fields) + ")";
    case Type::address: break;
  }
  return std::string(word(f.type));
}

const Method* find_method(std::string_view name) {
  const auto found = std::ranges::find(methods(), name, &Method::name);
  return found == methods().end() ? nullptr : &*found;
}

Result<void> validate(const Method& method, const Json& params) {
  const std::string name(method.name);
  if (!params.is_object())
    return bad(name, "parameters are given by name, not by position",
               "send \"params\" as an object; " + allowed_keys(method.params));
  if (auto checked = Validator(method).object(method.params, params, {}); !checked) return checked;
  if (method.exactly_one.empty()) return {};
  const auto given = std::ranges::count_if(method.exactly_one, [&](std::string_view p) { return params.contains(p); });
  if (given == 1) return {};
  return bad(name, given == 0 ? "what to act on is missing" : "what to act on is given more than once",
             "give exactly one of " + joined_names(method.exactly_one));
}

Result<void> validate_result(const Method& method, const Json& result) {
  if (method.any_result) return {};
  if (!result.is_object()) return bad(std::string(method.name), "the result is no object", {});
  return Validator(method).object(method.result, result, {});
}

}  // namespace probed::proto
