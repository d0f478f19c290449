//! Expressions through polars: parsing, types, exact arithmetic, evaluation.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use polars::prelude::*;
use polars_expr::planner::{ExpressionConversionState, create_physical_expr};
use polars_expr::prelude::{ExecutionState, PhysicalExpr};
use polars_plan::dsl::{BaseColumnUdf, new_column_udf};
use polars_plan::plans::expr_ir::ExprIR;
use polars_plan::plans::{AExpr, IR, ToFieldContext, is_elementwise_rec, is_scalar_ae};
use polars_plan::prelude::{Arena, FunctionOptions, Node, OptFlags};

use super::{Failed, Kind, Offer, Outcome, Values};
use crate::error::{Error, Result};
use crate::source::file::quietly;
use crate::tensor::{DType, Element, Tensor};

/// Longest expression, in bytes.
const MAX_LEN: usize = 10_000;
/// Most operands and operations of an expression: what recurses over it needs a bounded stack.
const MAX_PARTS: usize = 120;
/// Stack for reading expressions of up to [`MAX_LEN`] bytes.
const ROOM: usize = 128 << 20;

/// A SQL expression, its columns found and its types known.
pub struct Expression {
    sql: String,
    names: Vec<String>,
    kinds: Vec<Kind>,
    dtype: DType,
    by_row: bool,
    physical: Arc<dyn PhysicalExpr>,
}

impl std::fmt::Debug for Expression {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Expression").field(&self.sql).field(&self.dtype).finish()
    }
}

impl Expression {
    /// Reads an expression and resolves its types on the columns that there are.
    ///
    /// # Errors
    /// If it is no expression, names another column, mixes types that do not mix, looks beyond the columns, or gives
    /// something other than numbers or truth values.
    pub fn compile(sql: &str, offer: &Offer) -> Result<Self> {
        if sql.len() > MAX_LEN {
            let what = format!("found an expression of {} bytes, expected {MAX_LEN} at most", sql.len());
            return Err(Error::usage(what));
        }
        guarded(|| compile(sql, offer)).map_err(|e| if e.what().contains(sql) { e } else { in_expression(&e, sql) })
    }

    /// The columns that it reads.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// What it gives.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Whether a row's value depends on that row alone.
    #[must_use]
    pub fn by_row(&self) -> bool {
        self.by_row
    }

    /// The values over chunks of rows: chunk `i` is rows `offsets[i]..offsets[i + 1]` of every column.
    ///
    /// # Errors
    /// If a column cannot be had, or a value cannot be computed (a `CAST` that does not fit).
    pub fn evaluate(
        &self,
        column: &mut dyn FnMut(&str) -> Result<Values>,
        offsets: &[usize],
    ) -> Result<Outcome, Failed> {
        let rows = offsets.last().copied().unwrap_or(0);
        let mut columns = Vec::with_capacity(self.names.len());
        for (name, kind) in self.names.iter().zip(&self.kinds) {
            let values = column(name)?;
            columns.push(guarded(|| to_column(name, *kind, &values, rows))?);
        }
        let frame = guarded(|| {
            let made =
                if columns.is_empty() { Ok(DataFrame::empty_with_height(rows)) } else { DataFrame::new(rows, columns) };
            made.map_err(|e| Error::internal(format!("columns of a SQL frame: {e}")))
        })?;
        let mut out = Outcome { values: Tensor::zeros(self.dtype.scalar(), 0), nulls: Vec::new() };
        if self.by_row {
            match self.over(&frame, 0) {
                Ok(whole) => return Ok(whole),
                Err(error) if offsets.len() < 3 => return Err(Failed { chunk: Some(0), error }),
                // Once more chunk by chunk, to find out where.
                Err(_) => {}
            }
        }
        let mut parts = Vec::with_capacity(offsets.len());
        for (chunk, ends) in offsets.windows(2).enumerate() {
            let (start, len) = (ends[0], ends[1] - ends[0]);
            if len == 0 {
                continue;
            }
            let part = frame.slice(i64::try_from(start).unwrap_or(i64::MAX), len);
            let part = self.over(&part, start).map_err(|error| Failed { chunk: Some(chunk), error })?;
            out.nulls.extend(part.nulls);
            parts.push(part.values);
        }
        out.values = Tensor::concat(&self.dtype.scalar(), &parts);
        Ok(out)
    }

    /// The values over one frame, whose rows start at `start`.
    fn over(&self, frame: &DataFrame, start: usize) -> Result<Outcome> {
        let rows = frame.height();
        if rows == 0 {
            return Ok(Outcome { values: Tensor::zeros(self.dtype.scalar(), 0), nulls: Vec::new() });
        }
        guarded(|| {
            let column = self.physical.evaluate(frame, &ExecutionState::new()).map_err(|e| failed(&e))?;
            let mut series = column.take_materialized_series();
            if series.len() == 1 && rows != 1 {
                series = series.new_from_index(0, rows);
            }
            if series.len() != rows {
                let what = format!("the expression gives {} values for {rows} rows, expected one a row", series.len());
                return Err(Error::data(what));
            }
            let series = series.cast(&polars_type(self.dtype)).map_err(|e| failed(&e))?;
            from_series(&series, self.dtype, start)
        })
    }
}

fn compile(sql: &str, offer: &Offer) -> Result<Expression> {
    let parsed = parse(sql)?;
    let mut names: Vec<String> = Vec::new();
    for part in &parsed {
        let refused = match part {
            Expr::SubPlan(..) => "a sub-select",
            Expr::Selector(_) => "a list of columns (`*` or COLUMNS)",
            Expr::Explode { .. } => "UNNEST",
            Expr::Column(name) => {
                if !names.iter().any(|n| *n == name.as_str()) {
                    names.push(name.to_string());
                }
                continue;
            }
            _ => continue,
        };
        return Err(Error::usage(format!("found {refused}, expected an expression with one value a row")));
    }
    let mut schema = Schema::default();
    let mut kinds = Vec::with_capacity(names.len());
    for name in &names {
        let kind = offer.get(name).ok_or_else(|| offer.unknown(name))?;
        let dtype = match kind {
            Kind::Number(dtype) => polars_type(dtype),
            Kind::Text => DataType::String,
        };
        schema.with_column(name.as_str().into(), dtype);
        kinds.push(kind);
    }

    let frame = DataFrame::empty_with_schema(&schema);
    let schema = Arc::new(schema);
    let plan = frame
        .clone()
        .lazy()
        .select([count_truth_values(parsed, &schema).alias("value")])
        .with_optimizations(OptFlags::TYPE_COERCION | OptFlags::TYPE_CHECK)
        .to_alp_optimized()
        .map_err(|e| wrong_types(&e))?;
    let mut arena = plan.expr_arena;
    let IR::Select { expr, .. } = plan.lp_arena.get(plan.lp_top) else {
        return Err(Error::internal("polars planned an expression as something else"));
    };
    let [root] = expr.as_slice() else {
        return Err(Error::usage(format!("the expression gives {} columns, expected one", expr.len())));
    };
    let root = root.clone();
    let found = root.dtype(&schema, &arena).map_err(|e| wrong_types(&e))?.clone();
    let dtype = number_type(&found).ok_or_else(|| {
        let error =
            Error::usage(format!("the expression gives {}, expected a number or a truth value", type_word(&found)));
        match found {
            DataType::Null => error.hint("NULL alone has no type: CAST(NULL AS DOUBLE) has one"),
            DataType::String => error.hint("text stands in single quotes, names of columns in double quotes or none"),
            _ => error,
        }
    })?;
    let by_row = is_elementwise_rec(root.node(), &arena);
    if !by_row && !is_scalar_ae(root.node(), &arena) && !root.is_length_preserving(&arena) {
        return Err(Error::usage("the expression gives neither one value a row nor one value for all of them"));
    }
    make_exact(root.node(), &mut arena, &schema)?;
    let mut state = ExpressionConversionState::new(false);
    let physical = create_physical_expr(&root, &mut arena, &schema, &mut state).map_err(|e| wrong_types(&e))?;
    // What types alone do not show (no kernel for them) shows on no rows.
    let trial = physical.evaluate(&frame, &ExecutionState::new()).map_err(|e| wrong_types(&e))?;
    let given = number_type(trial.dtype());
    if given != Some(dtype) && !found.is_unknown() {
        return Err(Error::internal(format!("polars foretold {found} and gave {}", trial.dtype())));
    }
    Ok(Expression { sql: sql.to_owned(), names, kinds, dtype, by_row, physical })
}

/// Reads the text. A long one is read where there is room for deep recursion, until its size is known to be harmless.
fn parse(sql: &str) -> Result<Expr> {
    let read = || {
        let parsed = polars::sql::sql_expr(sql).map_err(|e| not_sql(&e))?;
        match (&parsed).into_iter().count() {
            0..=MAX_PARTS => Ok(parsed),
            parts => Err(Error::usage(format!("found an expression of {parts} parts, expected {MAX_PARTS} at most"))),
        }
    };
    if sql.len() <= MAX_PARTS {
        return read();
    }
    let roomy = || guarded(read);
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(ROOM).spawn_scoped(scope, roomy);
        let thread = thread.map_err(|e| Error::environment(format!("cannot start a thread: {e}")))?;
        thread.join().unwrap_or_else(|_| Err(Error::internal("a guarded thread fell")))
    })
}

/// Has truth values count as 0 and 1 (int64) beside each other and beside literals. Polars knows this for columns only.
fn count_truth_values(expr: Expr, schema: &Schema) -> Expr {
    let field = |e: &Expr| e.to_field(schema).ok().map(|f| f.dtype);
    let is_truth = |e: &Expr| match e {
        Expr::BinaryExpr { op, .. } if op.is_arithmetic() => false,
        Expr::Column(name) => schema.get(name) == Some(&DataType::Boolean),
        other => field(other) == Some(DataType::Boolean),
    };
    let counted =
        |e: &Arc<Expr>| if is_truth(e) { Arc::new(e.as_ref().clone().cast(DataType::Int64)) } else { Arc::clone(e) };
    expr.map_expr(|e| {
        let Expr::BinaryExpr { left, op, right } = &e else { return e };
        let untyped = |e: &Expr| is_truth(e) || field(e).is_some_and(|d| d.is_unknown());
        if op.is_arithmetic() && ((is_truth(left) && untyped(right)) || (is_truth(right) && untyped(left))) {
            return Expr::BinaryExpr { left: counted(left), op: *op, right: counted(right) };
        }
        e
    })
}

// ---- exact arithmetic -----------------------------------------------------------------------------------------------

/// Has every operation on floats done by [`exact`].
///
/// Polars divides by a scalar by multiplying with its reciprocal, and leaves `x + 0.0` out, which turns -0.0 into 0.0.
fn make_exact(root: Node, arena: &mut Arena<AExpr>, schema: &Schema) -> Result<()> {
    let mut todo = vec![root];
    let mut found = Vec::new();
    while let Some(node) = todo.pop() {
        let expr = arena.get(node);
        expr.inputs(&mut todo);
        if let AExpr::BinaryExpr { left, op, right } = expr
            && op.is_arithmetic()
        {
            let dtype = expr.to_dtype(&ToFieldContext::new(arena, schema)).map_err(|e| wrong_types(&e))?;
            let dtype = match dtype {
                DataType::Unknown(UnknownKind::Float) => DataType::Float64,
                other => other,
            };
            if dtype.is_float() {
                found.push((node, *left, *op, *right, dtype));
            }
        }
    }
    for (node, left, op, right, dtype) in found {
        let field_type = dtype.clone();
        let function = BaseColumnUdf::new(
            move |columns: &mut [Column]| exact(op, &dtype, columns),
            move |_: &Schema, fields: &[Field]| Ok(Field::new(fields[0].name().clone(), field_type.clone())),
        );
        let input = vec![ExprIR::from_node(left, arena), ExprIR::from_node(right, arena)];
        let call = AExpr::AnonymousFunction {
            input,
            function: new_column_udf(function),
            options: FunctionOptions::elementwise(),
            fmt_str: Box::new("arithmetic".into()),
        };
        arena.replace(node, call);
    }
    Ok(())
}

/// One operation on floats, rounded once, as `NumPy` does it. Null where an operand is null.
fn exact(op: Operator, dtype: &DataType, columns: &[Column]) -> PolarsResult<Column> {
    macro_rules! operate {
        ($float:ty, $left:expr, $right:expr) => {{
            let (left, right) = ($left, $right);
            match op {
                Operator::Plus => zip(left, right, |a, b| a + b),
                Operator::Minus => zip(left, right, |a, b| a - b),
                Operator::Multiply => zip(left, right, |a, b| a * b),
                Operator::TrueDivide | Operator::RustDivide => zip(left, right, |a, b| a / b),
                Operator::Modulus => zip(left, right, |a: $float, b: $float| {
                    let rest = a % b;
                    if rest == 0.0 { (0.0 as $float).copysign(b) } else if (b < 0.0) == (rest < 0.0) { rest } else { rest + b }
                }),
                Operator::FloorDivide => zip(left, right, |a: $float, b: $float| {
                    let rest = a % b;
                    if b == 0.0 {
                        return a / b;
                    }
                    let mut quotient = (a - rest) / b;
                    if rest != 0.0 && (b < 0.0) != (rest < 0.0) {
                        quotient -= 1.0;
                    }
                    if quotient == 0.0 {
                        return (0.0 as $float).copysign(a / b);
                    }
                    let floor = quotient.floor();
                    if quotient - floor > 0.5 { floor + 1.0 } else { floor }
                }),
                other => polars_bail!(InvalidOperation: "{other:?} is no arithmetic"),
            }
            .into_series()
        }};
    }
    let [left, right] = columns else { polars_bail!(InvalidOperation: "an operation has two operands") };
    let name = left.name().clone();
    let (left, right) = (left.as_materialized_series().cast(dtype)?, right.as_materialized_series().cast(dtype)?);
    let out: Series = match dtype {
        DataType::Float32 => operate!(f32, left.f32()?, right.f32()?),
        DataType::Float64 => operate!(f64, left.f64()?, right.f64()?),
        other => polars_bail!(InvalidOperation: "arithmetic on {other}"),
    };
    Ok(out.with_name(name).into_column())
}

/// `f` over two columns, of which one may be a single value.
fn zip<T: PolarsNumericType>(
    left: &ChunkedArray<T>,
    right: &ChunkedArray<T>,
    f: impl Fn(T::Native, T::Native) -> T::Native,
) -> ChunkedArray<T> {
    let (left, right) = (left.rechunk(), right.rechunk());
    if let (Ok(a), Ok(b)) = (left.cont_slice(), right.cont_slice()) {
        let values: Vec<T::Native> = match (a, b) {
            (a, [b]) => a.iter().map(|a| f(*a, *b)).collect(),
            ([a], b) => b.iter().map(|b| f(*a, *b)).collect(),
            (a, b) => a.iter().zip(b).map(|(a, b)| f(*a, *b)).collect(),
        };
        return ChunkedArray::from_vec(PlSmallStr::EMPTY, values);
    }
    let rows = if left.len() == 1 { right.len() } else { left.len() };
    let at = |column: &ChunkedArray<T>, i: usize| column.get(if column.len() == 1 { 0 } else { i });
    (0..rows).map(|i| at(&left, i).zip(at(&right, i)).map(|(a, b)| f(a, b))).collect()
}

// ---- values ---------------------------------------------------------------------------------------------------------

fn to_column(name: &str, kind: Kind, values: &Values, rows: usize) -> Result<Column> {
    fn series<T: PolarsNumericType<Native: Element>>(name: &str, tensor: &Tensor) -> Series
    where
        ChunkedArray<T>: IntoSeries,
    {
        ChunkedArray::<T>::from_slice(name.into(), tensor.values::<T::Native>()).into_series()
    }
    let made = match (kind, values) {
        (Kind::Text, Values::Text(text)) => {
            StringChunked::from_iter_values(name.into(), text.iter().map(|t| &**t)).into_series()
        }
        (Kind::Number(dtype), Values::Numbers(tensor)) if tensor.ty().dtype == dtype => match dtype {
            DType::Bool => {
                BooleanChunked::from_iter_values(name.into(), tensor.bytes().iter().map(|b| *b != 0)).into_series()
            }
            DType::Int8 => series::<Int8Type>(name, tensor),
            DType::Int16 => series::<Int16Type>(name, tensor),
            DType::Int32 => series::<Int32Type>(name, tensor),
            DType::Int64 => series::<Int64Type>(name, tensor),
            DType::UInt8 => series::<UInt8Type>(name, tensor),
            DType::UInt16 => series::<UInt16Type>(name, tensor),
            DType::UInt32 => series::<UInt32Type>(name, tensor),
            DType::UInt64 => series::<UInt64Type>(name, tensor),
            DType::Float32 => series::<Float32Type>(name, tensor),
            DType::Float64 => series::<Float64Type>(name, tensor),
            DType::Float16 => return Err(Error::internal("half precision in SQL")),
        },
        _ => return Err(Error::internal(format!("column {name} is not what it was said to be"))),
    };
    if made.len() != rows {
        return Err(Error::internal(format!("column {name} has {} rows, expected {rows}", made.len())));
    }
    Ok(made.into_column())
}

/// The values of a series, 0 for null; nulls are numbered from `start`.
fn from_series(series: &Series, dtype: DType, start: usize) -> Result<Outcome> {
    fn numbers<T: PolarsNumericType<Native: Element>>(column: &ChunkedArray<T>) -> Tensor {
        let column = column.rechunk();
        if let Ok(values) = column.cont_slice() {
            return Tensor::from_values::<T::Native>([], values);
        }
        let values: Vec<T::Native> = column.iter().map(|v| v.unwrap_or_else(bytemuck::Zeroable::zeroed)).collect();
        Tensor::from_values::<T::Native>([], &values)
    }
    let wrong = |e: PolarsError| Error::internal(format!("values of an expression: {e}"));
    let values = match dtype {
        DType::Bool => Tensor::from_bools(series.bool().map_err(wrong)?.iter().map(Option::unwrap_or_default)),
        DType::Int8 => numbers(series.i8().map_err(wrong)?),
        DType::Int16 => numbers(series.i16().map_err(wrong)?),
        DType::Int32 => numbers(series.i32().map_err(wrong)?),
        DType::Int64 => numbers(series.i64().map_err(wrong)?),
        DType::UInt8 => numbers(series.u8().map_err(wrong)?),
        DType::UInt16 => numbers(series.u16().map_err(wrong)?),
        DType::UInt32 => numbers(series.u32().map_err(wrong)?),
        DType::UInt64 => numbers(series.u64().map_err(wrong)?),
        DType::Float32 => numbers(series.f32().map_err(wrong)?),
        DType::Float64 => numbers(series.f64().map_err(wrong)?),
        DType::Float16 => return Err(Error::internal("half precision in SQL")),
    };
    let mut nulls = Vec::new();
    if series.null_count() > 0 {
        nulls.extend(series.is_null().iter().enumerate().filter(|(_, n)| *n == Some(true)).map(|(i, _)| start + i));
    }
    Ok(Outcome { values, nulls })
}

fn polars_type(dtype: DType) -> DataType {
    match dtype {
        DType::Bool => DataType::Boolean,
        DType::Int8 => DataType::Int8,
        DType::Int16 => DataType::Int16,
        DType::Int32 => DataType::Int32,
        DType::Int64 => DataType::Int64,
        DType::UInt8 => DataType::UInt8,
        DType::UInt16 => DataType::UInt16,
        DType::UInt32 => DataType::UInt32,
        DType::UInt64 => DataType::UInt64,
        DType::Float16 | DType::Float32 => DataType::Float32,
        DType::Float64 => DataType::Float64,
    }
}

fn number_type(dtype: &DataType) -> Option<DType> {
    Some(match dtype {
        DataType::Boolean => DType::Bool,
        DataType::Int8 => DType::Int8,
        DataType::Int16 => DType::Int16,
        DataType::Int32 => DType::Int32,
        DataType::Int64 | DataType::Unknown(UnknownKind::Int(_)) => DType::Int64,
        DataType::UInt8 => DType::UInt8,
        DataType::UInt16 => DType::UInt16,
        DataType::UInt32 => DType::UInt32,
        DataType::UInt64 => DType::UInt64,
        DataType::Float32 => DType::Float32,
        DataType::Float64 | DataType::Unknown(UnknownKind::Float) => DType::Float64,
        _ => return None,
    })
}

fn type_word(dtype: &DataType) -> String {
    match dtype {
        DataType::String | DataType::Unknown(UnknownKind::Str) => "text".to_owned(),
        DataType::Null => "NULL".to_owned(),
        other => other.to_string(),
    }
}

// ---- errors ---------------------------------------------------------------------------------------------------------

/// Runs polars. A panic in it becomes an [`Error`]; what it worked on is dropped.
fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    quietly(|| catch_unwind(AssertUnwindSafe(work))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().copied().map(str::to_owned);
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Err(Error::usage(format!("polars cannot work with the expression: {}", one_line(&text))))
    })
}

fn in_expression(error: &Error, sql: &str) -> Error {
    let mut out = Error::new(error.kind(), format!("{} (in `{}`)", error.what(), one_line(sql)));
    if let Some(hint) = error.hint_text() {
        out = out.hint(hint);
    }
    if let Some(column) = &error.place().column {
        out = out.column(column.clone());
    }
    out
}

/// The first sentences of a polars message, on one line.
fn one_line(text: &str) -> String {
    let text = text.split("\n\n").next().unwrap_or_default();
    let mut line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = line.char_indices().nth(300) {
        line.truncate(end);
        line.push_str(" ...");
    }
    line
}

fn not_sql(error: &PolarsError) -> Error {
    let text = one_line(&error.to_string());
    let out = Error::usage(format!("this is no SQL expression: {text}"));
    if text.contains("cannot parse literal") {
        return out.hint("a number with an exponent needs a decimal point: 1.0e-3; integers end at 2^63 - 1");
    }
    out.hint("one expression of Polars SQL is expected: columns, numbers, operators and functions, and no statement")
}

fn wrong_types(error: &PolarsError) -> Error {
    Error::usage(format!("the expression does not fit its columns: {}", one_line(&error.to_string())))
        .hint("CAST(x AS DOUBLE), REAL, BIGINT, INT or BOOLEAN changes a type")
}

fn failed(error: &PolarsError) -> Error {
    Error::data(format!("the expression cannot be computed: {}", one_line(&error.to_string())))
}
