// Readable names for C++ and Rust (legacy mangling) symbols, and the parts of such a name that people type. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace probed::names {

// Whether the name is of a kind that demangle() may know.
inline bool is_mangled(std::string_view name) { return name.starts_with("_Z"); }

// The name without GCC's and LLVM's clone suffixes: foo.constprop.0, foo.isra.0.part.1, foo.cold, foo.lto_priv.3,
// foo.llvm.123. The same text when there are none.
std::string_view without_clone_suffix(std::string_view name);
// Whether the suffixes say that this is a piece of a function (.cold, .part) and thus not where the function is
// entered.
bool is_fragment(std::string_view name);

// "ns::f(int)" for "_ZN2nsL1fEi"; empty when the name isn't mangled, not understood, or could unfold into more than
// some megabytes. Clone suffixes are dropped, and so is Rust's hash.
std::string demangle(std::string_view name);

// The parts of a demangled name "int ns::f<int>(char) const". Views into the text given.
struct NameParts {
  std::string_view full;  // ns::f<int>(char) const
  std::string_view name;  // ns::f<int>
  std::string_view bare;  // ns::f
};
NameParts split_name(std::string_view demangled);

// How many parameters a demangled name has, "..." left out; none: it doesn't say.
std::optional<std::size_t> parameters_in(std::string_view demangled);

// Whether the name has ABI tags, f[abi:cxx11](int), which no source has; and the name without them.
bool has_abi_tag(std::string_view name);
std::string without_abi_tags(std::string_view name);

// "ns::f" for "ns::(anonymous namespace)::f": namespaces without a name left out, as the source writes it elsewhere.
std::string without_unnamed(std::string_view name);

// A function's name without what may follow its parameters: const, volatile, &, &&.
std::string_view without_qualifiers(std::string_view full);

// A readable name as a definition takes it as one word: no return type, no blanks but those between two words,
// and in an operator's name; std::string for what that is.
std::string as_one_word(std::string_view demangled);

// A name with its parameters in one of the ways to write them, without blanks: "f(std::stringconst&)" for
// "f(std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> > const&)" and for
// "f(const std::string&)". For comparisons only; of more than 16 KiB only the blanks go.
std::string in_one_spelling(std::string_view full);

// Whether a name is the other one with some of its scopes left out, as inline namespaces are in the source: ns::f of
// ns::v1::f. The last part has to be there.
bool leaves_out_scopes(std::string_view shorter, std::string_view name);

// Whether what somebody has typed may stand for a function: its scopes, its template arguments and its parameters may
// be left out, but not its last part, and what is there may be spelled as the source has it.
bool is_short_for(const NameParts& typed, const NameParts& name);

// The text without blanks: how demangled names are compared, since people and compilers disagree on "char *".
std::string without_blanks(std::string_view text);

// An upper bound of the length of what demangling would print; saturates. Exposed for its test: substitutions let a
// few hundred bytes unfold into gigabytes, and __cxa_demangle has no limit of its own.
std::uint64_t demangled_bound(std::string_view mangled);

}  // namespace probed::names
