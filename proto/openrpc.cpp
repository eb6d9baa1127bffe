// See openrpc.hpp. Thread: any (the cached text is made under C++'s guard of function-local statics).
#include "proto/openrpc.hpp"

#include <limits>

#include "proto/jsonrpc.hpp"
#include "proto/schema.hpp"

namespace probed::proto {
namespace {

using Ordered = nlohmann::ordered_json;

Ordered object_schema(std::span<const Field> fields);

Ordered integer_schema(const Field& f) {
  Ordered s{{"type", "integer"}, {"minimum", f.min}};
  if (f.max != std::numeric_limits<std::uint64_t>::max()) s["maximum"] = f.max;
  return s;
}

Ordered string_schema(const Field& f) {
  Ordered s{{"type", "string"}};
  if (f.min > 0) s["minLength"] = f.min;
  // JSON Schema counts characters, the server bytes: the description is the wider of the two.
  if (f.max != std::numeric_limits<std::uint64_t>::max()) s["maxLength"] = f.max;
  return s;
}

Ordered schema(const Field& f) {
  switch (f.type) {
    case Type::boolean: return f.min == 1 ? Ordered{{"const", true}} : Ordered{{"type", "boolean"}};
    case Type::integer: return integer_schema(f);
    case Type::string: return string_schema(f);
    case Type::address: return Ordered{{"type", "string"}, {"pattern", "^0x[0-9a-f]+$"}};
    case Type::reference: return Ordered{{"type", {"string", "integer"}}};
    case Type::object: return object_schema(f.fields);
    case Type::array: break;
  }
  Ordered s{{"type", "array"}, {"items", schema(*f.items)}};
  if (f.min > 0) s["minItems"] = f.min;
  if (f.max != std::numeric_limits<std::uint64_t>::max()) s["maxItems"] = f.max;
  return s;
}

Ordered object_schema(std::span<const Field> fields) {
  Ordered s{{"type", "object"}};
  if (fields.empty()) return s;  // documented elsewhere
  Ordered properties = Ordered::object(), required = Ordered::array();
  for (const Field& f : fields) {
    Ordered property = schema(f);
    property["description"] = f.description;
    properties[std::string(f.name)] = std::move(property);
    if (f.required) required.push_back(f.name);
  }
  s["properties"] = std::move(properties);
  if (!required.empty()) s["required"] = std::move(required);
  s["additionalProperties"] = false;
  return s;
}

Ordered params(std::span<const Field> fields) {
  Ordered out = Ordered::array();
  for (const Field& f : fields)
    out.push_back({{"name", f.name}, {"description", f.description}, {"required", f.required}, {"schema", schema(f)}});
  return out;
}

Ordered errors(std::span<const Reason> reasons) {
  Ordered out = Ordered::array();
  for (const Reason r : reasons) out.push_back({{"code", rpc_code(r)}, {"message", to_string(r)}});
  return out;
}

Ordered method(const Method& m) {
  Ordered out{{"name", m.name}, {"summary", m.summary}, {"paramStructure", "by-name"}, {"params", params(m.params)}};
  if (!m.exactly_one.empty()) {
    out["x-exactly-one-of"] = Ordered::array();
    for (const auto name : m.exactly_one) out["x-exactly-one-of"].push_back(name);
  }
  out["result"] = {{"name", "result"}, {"schema", object_schema(m.result)}};
  if (!m.errors.empty()) out["errors"] = errors(m.errors);
  return out;
}

Ordered reasons() {
  Ordered out = Ordered::array();
  for (int i = 0; i <= static_cast<int>(Reason::internal); ++i) {
    const auto reason = static_cast<Reason>(i);
    out.push_back({{"reason", to_string(reason)}, {"code", rpc_code(reason)}});
  }
  out.push_back({{"reason", to_string(Reason::bad_message)}, {"code", kParseError}});
  return out;
}

Ordered document() {
  Ordered out{{"openrpc", "1.2.6"},
              {"info",
               {{"title", "probed"},
                {"description",
                 "Probes in running processes: JSON-RPC 2.0 over a Unix stream socket. "
                 "proto/PROTOCOL.md says what the words mean."},
                {"version", "1.0.0"},
                {"license", {{"name", "Apache-2.0"}}}}}};
  out["methods"] = Ordered::array();
  for (const Method& m : methods()) out["methods"].push_back(method(m));
  out["x-notifications"] = Ordered::array();
  for (const NotificationInfo& n : notifications())
    out["x-notifications"].push_back({{"name", n.name}, {"summary", n.summary}, {"params", params(n.params)}});
  out["x-reasons"] = reasons();
  return out;
}

}  // namespace

std::string openrpc_document() { return document().dump(2) + "\n"; }

const std::string& openrpc_text() {
  static const std::string text = document().dump();
  return text;
}

}  // namespace probed::proto
