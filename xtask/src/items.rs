//! What a Rust file defines and imports.

use std::collections::BTreeSet;

use proc_macro2::Span;
use syn::{
    Attribute, Expr, FnArg, ImplItem, Item, Lit, Meta, ReturnType, Signature, TraitItem, Type, UseTree,
    Visibility,
    spanned::Spanned,
    visit::{self, Visit},
};

use crate::tokens::Token;

/// A type, trait, function, constant or macro.
#[derive(Clone, Debug)]
pub struct Definition {
    /// Its keyword: `struct`, `enum`, `union`, `type`, `trait`, `fn`, `const`, `static`, `macro`.
    pub keyword: &'static str,
    /// Its name.
    pub name: String,
    /// The modules inside the file that it is in.
    pub module: Vec<String>,
    /// Whether other crates can name it, as far as its own words go.
    pub is_public: bool,
    /// Whether rustdoc leaves it out.
    pub is_hidden: bool,
    /// Whether it is compiled in tests only.
    pub is_test: bool,
    /// Its line.
    pub line: usize,
    /// Names of variants, where it is an enum.
    pub variants: Vec<String>,
    /// Public fields, where it is a struct.
    pub fields: Vec<String>,
    /// Names of its methods and of the traits above it, where it is a trait.
    pub methods: Vec<String>,
    /// See `methods`.
    pub above: Vec<String>,
}

/// A function or method with a body.
#[derive(Clone, Debug)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// The type it is an inherent method of.
    pub of: Option<String>,
    /// Whether it is `pub`.
    pub is_public: bool,
    /// Whether it is compiled in tests only.
    pub is_test: bool,
    /// Whether it is `async`.
    pub is_async: bool,
    /// Whether it takes `mut self` and returns `Self`.
    pub is_builder: bool,
    /// Its doc comment.
    pub doc: String,
    /// Its first line, without attributes.
    pub line: usize,
    /// Lines from the first to the closing brace.
    pub lines: usize,
}

/// One name that a `use` brings, or `*`.
#[derive(Clone, Debug)]
pub struct Import {
    /// Its path.
    pub path: Vec<String>,
    /// The name it has here; `*`: all names, `_`: none.
    pub name: String,
    /// The modules inside the file that it is in.
    pub module: Vec<String>,
    /// `pub` or `pub(...)`.
    pub is_exported: bool,
    /// `pub`.
    pub is_public: bool,
    /// Whether rustdoc leaves it out.
    pub is_hidden: bool,
    /// Whether it is compiled in tests only.
    pub is_test: bool,
    /// Its line.
    pub line: usize,
}

/// A `mod name;` or `mod name { .. }`.
#[derive(Clone, Debug)]
pub struct ModuleDeclaration {
    /// Its name.
    pub name: String,
    /// The modules inside the file that it is in.
    pub module: Vec<String>,
    /// Whether its text is in this file.
    pub is_inline: bool,
    /// The file that it names.
    pub path: Option<String>,
    /// `pub`.
    pub is_public: bool,
    /// Whether it is compiled in tests only.
    pub is_test: bool,
}

/// Everything in a file.
#[derive(Clone, Default, Debug)]
pub struct Items {
    /// Types, traits, functions, constants, macros.
    pub definitions: Vec<Definition>,
    /// Everything with a body.
    pub functions: Vec<Function>,
    /// What `use` brings.
    pub imports: Vec<Import>,
    /// Modules.
    pub modules: Vec<ModuleDeclaration>,
    /// The attributes of the file, without spaces.
    pub attributes: Vec<String>,
}

/// The items of a file.
#[must_use]
pub fn of(file: &syn::File, tokens: &[Token]) -> Items {
    let is_test = tokens.iter().filter(|token| token.is_test).map(|token| token.bytes.start).collect();
    let mut reader = Reader { is_test, module: Vec::new(), of: None, items: Items::default() };
    reader.items.attributes = file.attrs.iter().map(|attribute| spelt(attribute.meta.span())).collect();
    reader.visit_file(file);
    reader.items
}

fn spelt(span: Span) -> String {
    span.source_text().unwrap_or_default().split_whitespace().collect()
}

struct Reader {
    /// First bytes of the tokens that belong to tests.
    is_test: BTreeSet<usize>,
    module: Vec<String>,
    of: Option<String>,
    items: Items,
}

impl Reader {
    fn is_test(&self, span: Span) -> bool {
        self.is_test.contains(&span.byte_range().start)
    }

    fn define(
        &mut self,
        keyword: &'static str,
        name: &syn::Ident,
        vis: Option<&Visibility>,
        attrs: &[Attribute],
    ) -> &mut Definition {
        let definition = Definition {
            keyword,
            name: name.to_string(),
            module: self.module.clone(),
            is_public: vis.is_some_and(is_public),
            is_hidden: is_hidden(attrs),
            is_test: self.is_test(name.span()),
            line: name.span().start().line,
            variants: Vec::new(),
            fields: Vec::new(),
            methods: Vec::new(),
            above: Vec::new(),
        };
        self.items.definitions.push(definition);
        self.items.definitions.last_mut().expect("it was pushed just now")
    }

    fn function(
        &mut self,
        signature: &Signature,
        first: Span,
        end: Span,
        is_public: bool,
        attrs: &[Attribute],
    ) {
        let line = first.start().line;
        self.items.functions.push(Function {
            name: signature.ident.to_string(),
            of: self.of.clone(),
            is_public,
            is_test: self.is_test(signature.ident.span()),
            is_async: signature.asyncness.is_some(),
            is_builder: is_builder(signature),
            doc: doc(attrs),
            line,
            lines: end.end().line + 1 - line,
        });
    }

    fn import(&mut self, tree: &UseTree, path: &mut Vec<String>, outer: &syn::ItemUse) {
        let mut leaf = |path: Vec<String>, name: String, span: Span| {
            let import = Import {
                path,
                name,
                module: self.module.clone(),
                is_exported: !matches!(outer.vis, Visibility::Inherited),
                is_public: is_public(&outer.vis),
                is_hidden: is_hidden(&outer.attrs),
                is_test: self.is_test.contains(&span.byte_range().start),
                line: span.start().line,
            };
            self.items.imports.push(import);
        };
        match tree {
            UseTree::Path(part) => {
                path.push(part.ident.to_string());
                self.import(&part.tree, path, outer);
                path.pop();
            }
            UseTree::Name(part) if part.ident == "self" => {
                leaf(path.clone(), path.last().cloned().unwrap_or_default(), part.ident.span());
            }
            UseTree::Name(part) => {
                let whole = path.iter().cloned().chain([part.ident.to_string()]).collect();
                leaf(whole, part.ident.to_string(), part.ident.span());
            }
            UseTree::Rename(part) => {
                let own = (part.ident != "self").then(|| part.ident.to_string());
                leaf(path.iter().cloned().chain(own).collect(), part.rename.to_string(), part.ident.span());
            }
            UseTree::Glob(part) => leaf(path.clone(), "*".to_owned(), part.span()),
            UseTree::Group(part) => {
                for tree in &part.items {
                    self.import(tree, path, outer);
                }
            }
        }
    }

    fn trait_item(&mut self, item: &syn::ItemTrait) {
        let methods = item.items.iter().filter_map(|item| match item {
            TraitItem::Fn(method) => Some(method.sig.ident.to_string()),
            _ => None,
        });
        let above = item.supertraits.iter().filter_map(|bound| match bound {
            syn::TypeParamBound::Trait(bound) => Some(bound.path.segments.last()?.ident.to_string()),
            _ => None,
        });
        let (methods, above) = (methods.collect(), above.collect());
        let definition = self.define("trait", &item.ident, Some(&item.vis), &item.attrs);
        (definition.methods, definition.above) = (methods, above);
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast Item) {
        match item {
            Item::Struct(it) => {
                let fields = it.fields.iter().filter(|field| is_public(&field.vis));
                let fields =
                    fields.filter_map(|field| field.ident.as_ref().map(ToString::to_string)).collect();
                self.define("struct", &it.ident, Some(&it.vis), &it.attrs).fields = fields;
            }
            Item::Enum(it) => {
                let variants = it.variants.iter().map(|variant| variant.ident.to_string()).collect();
                self.define("enum", &it.ident, Some(&it.vis), &it.attrs).variants = variants;
            }
            Item::Union(it) => drop(self.define("union", &it.ident, Some(&it.vis), &it.attrs).line),
            Item::Type(it) => drop(self.define("type", &it.ident, Some(&it.vis), &it.attrs).line),
            Item::Const(it) => drop(self.define("const", &it.ident, Some(&it.vis), &it.attrs).line),
            Item::Static(it) => drop(self.define("static", &it.ident, Some(&it.vis), &it.attrs).line),
            Item::Macro(it) => {
                if let Some(name) = &it.ident {
                    let exported = it.attrs.iter().any(|attribute| attribute.path().is_ident("macro_export"));
                    self.define("macro", name, None, &it.attrs).is_public = exported;
                }
            }
            Item::Trait(it) => self.trait_item(it),
            Item::Fn(it) => {
                self.define("fn", &it.sig.ident, Some(&it.vis), &it.attrs);
                let first = if is_public(&it.vis) { it.vis.span() } else { it.sig.span() };
                self.function(&it.sig, first, it.block.span(), is_public(&it.vis), &it.attrs);
            }
            Item::Use(it) => {
                // A path from the list of crates, whatever else has the name here.
                let mut path: Vec<String> = it.leading_colon.map(|_| "::".to_owned()).into_iter().collect();
                self.import(&it.tree, &mut path, it);
            }
            Item::Mod(it) => {
                self.items.modules.push(ModuleDeclaration {
                    name: it.ident.to_string(),
                    module: self.module.clone(),
                    is_inline: it.content.is_some(),
                    path: text_of(&it.attrs, "path").next(),
                    is_public: is_public(&it.vis),
                    is_test: self.is_test(it.ident.span()),
                });
                self.module.push(it.ident.to_string());
                visit::visit_item(self, item);
                self.module.pop();
                return;
            }
            _ => {}
        }
        // A function inside a method is no method.
        let of = self.of.take();
        if let Item::Impl(it) = item {
            self.of = it.trait_.is_none().then(|| type_name(&it.self_ty)).flatten();
        }
        visit::visit_item(self, item);
        self.of = of;
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        if let ImplItem::Fn(it) = item {
            self.function(&it.sig, it.sig.span(), it.block.span(), is_public(&it.vis), &it.attrs);
        }
        visit::visit_impl_item(self, item);
    }

    fn visit_trait_item(&mut self, item: &'ast TraitItem) {
        if let TraitItem::Fn(it) = item
            && let Some(block) = &it.default
        {
            self.function(&it.sig, it.sig.span(), block.span(), false, &it.attrs);
        }
        visit::visit_trait_item(self, item);
    }
}

fn is_public(vis: &Visibility) -> bool {
    matches!(vis, Visibility::Public(_))
}

fn is_hidden(attrs: &[Attribute]) -> bool {
    attrs.iter().any(|attribute| spelt(attribute.meta.span()) == "doc(hidden)")
}

fn type_name(ty: &Type) -> Option<String> {
    match ty {
        Type::Path(path) => path.path.segments.last().map(|segment| segment.ident.to_string()),
        _ => None,
    }
}

fn is_builder(signature: &Signature) -> bool {
    let takes_self = matches!(signature.inputs.first(), Some(FnArg::Receiver(it)) if it.reference.is_none() && it.mutability.is_some());
    let gives_self =
        matches!(&signature.output, ReturnType::Type(_, ty) if type_name(ty).as_deref() == Some("Self"));
    takes_self && gives_self
}

/// The texts of attributes `#[name = "text"]`.
fn text_of<'a>(attrs: &'a [Attribute], name: &'a str) -> impl Iterator<Item = String> + 'a {
    attrs.iter().filter_map(move |attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident(name) => match &pair.value {
            Expr::Lit(literal) => match &literal.lit {
                Lit::Str(text) => Some(text.value()),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    })
}

fn doc(attrs: &[Attribute]) -> String {
    text_of(attrs, "doc").collect::<Vec<_>>().join("\n")
}
