// ast.h: the parsed template. Every node evaluates itself in a Run; names are small numbers.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/text/chat/value.h"

namespace nibble::chat {

class Run;
struct Builtin;

enum class Flow : unsigned char { next, leave_loop, next_turn };

struct Expr {
  explicit Expr(int l) : line(l) {}
  virtual ~Expr() = default;
  virtual Value eval(Run& run) const = 0;
  int line;
  int depth = 1;  // levels of nodes below; limited, as evaluation recurses
};
using ExprPtr = std::unique_ptr<Expr>;

struct Stmt {
  explicit Stmt(int l) : line(l) {}
  virtual ~Stmt() = default;
  virtual Flow exec(Run& run) const = 0;
  int line;
};
using Body = std::vector<std::unique_ptr<Stmt>>;

struct Arguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star, star_star;  // *args, **kwargs
};

struct Target {
  enum class Is : unsigned char { name, attribute, tuple } is = Is::name;
  int name = 0;
  std::string attribute;
  std::vector<Target> items;
};

// Expressions.
struct Constant final : Expr {
  using Expr::Expr;
  Value eval(Run& run) const override;
  Value value;
};
struct NameExpr final : Expr {
  using Expr::Expr;
  Value eval(Run& run) const override;
  int name = 0;
};
struct SequenceExpr final : Expr {
  using Expr::Expr;
  Value eval(Run& run) const override;
  bool tuple = false;
  std::vector<ExprPtr> items;
};
struct DictExpr final : Expr {
  using Expr::Expr;
  Value eval(Run& run) const override;
  std::vector<std::pair<ExprPtr, ExprPtr>> items;
};
struct AttributeExpr final : Expr {
  using Expr::Expr;
  Value eval(Run& run) const override;
  ExprPtr object;
  Value name;
};
struct ItemExpr final : Expr {
  using Expr::Expr;
  Value eval(Run& run) const override;
  ExprPtr object, index;
};
struct SliceExpr final : Expr {
  using Expr::Expr;
  Value eval(Run& run) const override;
  ExprPtr object, start, stop, step;
};
struct CallExpr final : Expr {
  using Expr::Expr;
  Value eval(Run& run) const override;
  ExprPtr callee;
  Arguments args;
};
struct FilterExpr final : Expr {
  using Expr::Expr;
  Value eval(Run& run) const override;
  ExprPtr input;  // null at the start of a filter block: the block's text
  const Builtin* def = nullptr;
  std::string name;
  Arguments args;
};
struct TestExpr final : Expr {
  using Expr::Expr;
  Value eval(Run& run) const override;
  ExprPtr input;
  const Builtin* def = nullptr;
  std::string name;
  Arguments args;
};
enum class Op : unsigned char { add, sub, mul, div, floordiv, mod, pow };
struct BinaryExpr final : Expr {
  using Expr::Expr;
  Value eval(Run& run) const override;
  Op op = Op::add;
  ExprPtr left, right;
};
struct UnaryExpr final : Expr {
  using Expr::Expr;
  Value eval(Run& run) const override;
  char op = '-';  // '-', '+', '!' for not
  ExprPtr operand;
};
struct LogicExpr final : Expr {
  using Expr::Expr;
  Value eval(Run& run) const override;
  bool both = false;  // and; else or
  ExprPtr left, right;
};
enum class Cmp : unsigned char { eq, ne, lt, le, gt, ge, in, not_in };
struct CompareExpr final : Expr {
  using Expr::Expr;
  Value eval(Run& run) const override;
  ExprPtr first;
  std::vector<std::pair<Cmp, ExprPtr>> rest;
};
struct ConcatExpr final : Expr {
  using Expr::Expr;
  Value eval(Run& run) const override;
  std::vector<ExprPtr> items;
};
struct ConditionalExpr final : Expr {
  using Expr::Expr;
  Value eval(Run& run) const override;
  ExprPtr test, yes, no;
};

// Statements.
struct DataStmt final : Stmt {
  using Stmt::Stmt;
  Flow exec(Run& run) const override;
  std::string text;
};
struct OutputStmt final : Stmt {
  using Stmt::Stmt;
  Flow exec(Run& run) const override;
  std::vector<ExprPtr> values;  // {% print %} takes several
};
struct IfStmt final : Stmt {
  using Stmt::Stmt;
  Flow exec(Run& run) const override;
  struct Branch {
    int line;
    ExprPtr test;
    Body body;
  };
  std::vector<Branch> branches;
  Body otherwise;
};
struct ForStmt final : Stmt {
  using Stmt::Stmt;
  Flow exec(Run& run) const override;
  Target target;
  ExprPtr iterable, test;
  bool recursive = false;
  Body body, otherwise;
};
struct SetStmt final : Stmt {
  using Stmt::Stmt;
  Flow exec(Run& run) const override;
  Target target;
  ExprPtr value;  // {% set x = value %}; else the block form
  ExprPtr filter;
  Body body;
};
struct WithStmt final : Stmt {
  using Stmt::Stmt;
  Flow exec(Run& run) const override;
  std::vector<std::pair<Target, ExprPtr>> values;
  Body body;
};
// What a macro and the body of a call block share.
struct Procedure {
  std::string name;  // empty for a call block
  std::vector<std::pair<int, std::string>> params;
  std::vector<ExprPtr> defaults;  // of the last params
  Body body;
  bool uses_varargs = false, uses_kwargs = false, uses_caller = false;
};
struct MacroStmt final : Stmt {
  using Stmt::Stmt;
  Flow exec(Run& run) const override;
  int name = 0;
  Procedure procedure;
};
struct CallStmt final : Stmt {
  using Stmt::Stmt;
  Flow exec(Run& run) const override;
  std::unique_ptr<CallExpr> call;
  Procedure procedure;
};
struct FilterStmt final : Stmt {
  using Stmt::Stmt;
  Flow exec(Run& run) const override;
  ExprPtr filter;
  Body body;
};
struct BlockStmt final : Stmt {
  using Stmt::Stmt;
  Flow exec(Run& run) const override;
  std::string name;
  bool scoped = false;
  Body body;
};
struct GenerationStmt final : Stmt {
  using Stmt::Stmt;
  Flow exec(Run& run) const override;
  Body body;
};
struct ScopeStmt final : Stmt {  // {% autoescape false %}
  using Stmt::Stmt;
  Flow exec(Run& run) const override;
  Body body;
};
struct JumpStmt final : Stmt {
  using Stmt::Stmt;
  Flow exec(Run& run) const override;
  Flow flow = Flow::leave_loop;
};
struct FailStmt final
    : Stmt {  // include, import, extends: known, but there is nothing to load from
  using Stmt::Stmt;
  Flow exec(Run& run) const override;
  std::string what;
};

// Names that the language itself gives a value to.
enum Symbol : int { kLoop, kCaller, kVarargs, kKwargs, kSelf, kFirstFree };

struct Program {
  std::string name;
  std::vector<std::string> symbols;
  std::vector<const BlockStmt*> blocks;
  Body body;
};

std::shared_ptr<const Program> parse(const std::string& source, std::string name);

}  // namespace nibble::chat
