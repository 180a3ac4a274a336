//! The figures as SVG plots: one picture a kind of figure, one panel a traffic.
//!
//! Text is set by whoever shows the picture, so the same figures give the same file everywhere.

use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use crate::{
    figures::{CORES, Figures},
    traffic::{Sample, Traffic},
};

/// Size of a picture, in pixels: three panels by two.
const SIZE: (u32, u32) = (1260, 680);
/// Ends of the vertical axis. What is less lies on the lower one: logarithms have no zero.
const LEAST: f64 = 0.001;
const MOST: f64 = 10.0;
/// A colour for each allocator in their order, apart also for those who see no red or no green
/// (Okabe and Ito).
const COLOURS: [RGBColor; 9] = [
    RGBColor(213, 94, 0),
    RGBColor(230, 159, 0),
    RGBColor(240, 228, 66),
    RGBColor(0, 114, 178),
    RGBColor(86, 180, 233),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(150, 150, 150),
    RGBColor(0, 0, 0),
];

type Panel<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type DrawingError = DrawingAreaErrorKind<std::io::Error>;

/// Draws read-modify-writes a packet over the cores.
pub(crate) fn rmws(figures: &Figures) -> Result<String, DrawingError> {
    draw(figures, "read-modify-writes a packet", Sample::rmws)
}

/// Draws line transfers a packet over the cores.
pub(crate) fn transfers(figures: &Figures) -> Result<String, DrawingError> {
    draw(figures, "line transfers a packet", Sample::transfers)
}

fn draw(figures: &Figures, what: &str, figure: fn(&Sample) -> f64) -> Result<String, DrawingError> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let panels = root.split_evenly((2, 3));
        for (panel, traffic) in panels.iter().zip(Traffic::ALL) {
            draw_traffic(panel, figures, traffic, what, figure)?;
        }
        draw_legend(&panels[Traffic::ALL.len()], figures)?;
        root.present()?;
    }
    Ok(svg)
}

fn draw_traffic(
    panel: &Panel,
    figures: &Figures,
    traffic: Traffic,
    what: &str,
    figure: fn(&Sample) -> f64,
) -> Result<(), DrawingError> {
    let cores = CORES.map(|cores| cores as f64);
    let mut chart = ChartBuilder::on(panel)
        .margin(12)
        .caption(traffic.title(), ("sans-serif", 17))
        .x_label_area_size(38)
        .y_label_area_size(58)
        .build_cartesian_2d(
            (cores[0]..cores[cores.len() - 1]).log_scale().with_key_points(cores.to_vec()),
            (LEAST..MOST).log_scale().with_key_points(vec![LEAST, 0.01, 0.1, 1.0, MOST]),
        )?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .label_style(("sans-serif", 14))
        .x_desc("cores")
        .y_desc(what)
        .x_label_formatter(&|cores| format!("{cores:.0}"))
        .y_label_formatter(&|value| if *value <= LEAST { format!("< {LEAST}") } else { value.to_string() })
        .draw()?;
    let rows: Vec<_> = figures.of(traffic).zip(COLOURS).collect();
    // The first last: where lines meet, the pool's is seen.
    for (row, colour) in rows.into_iter().rev() {
        let points =
            cores.iter().zip(&row.samples).map(|(cores, sample)| (*cores, figure(sample).max(LEAST)));
        chart.draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?;
        chart.draw_series(points.map(|point| Circle::new(point, 3, colour.filled())))?;
    }
    Ok(())
}

fn draw_legend(panel: &Panel, figures: &Figures) -> Result<(), DrawingError> {
    let style = ("sans-serif", 17).into_text_style(panel).pos(Pos::new(HPos::Left, VPos::Center));
    for ((row, colour), line) in figures.of(Traffic::ALL[0]).zip(COLOURS).zip(0..) {
        let y = 70 + 28 * line;
        panel.draw(&PathElement::new([(70, y), (110, y)], colour.stroke_width(3)))?;
        panel.draw(&Text::new(row.allocator, (124, y), style.clone()))?;
    }
    Ok(())
}
